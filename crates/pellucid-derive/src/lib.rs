//! The procedural macros of Pellucid.
#![forbid(unsafe_code)]

mod module;
mod tensor_method;

use proc_macro::TokenStream;

/// Adds a method of `Tensor` with the name of the operation, which panics where the function returns an error.
///
/// The first parameter of the function is `&Tensor` and its result `Result<T>`. The method takes the other
/// parameters and returns `T`, or panics at the line of its caller with the typed error. Errors name the operation, as
/// with [`operation`].
#[proc_macro_attribute]
pub fn tensor_method(_arguments: TokenStream, item: TokenStream) -> TokenStream {
    tensor_method::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Sets the operation name in all errors of a function, including errors of the operations that it calls.
///
/// The function must return `Result<T>`.
#[proc_macro_attribute]
pub fn operation(_arguments: TokenStream, item: TokenStream) -> TokenStream {
    tensor_method::operation(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements `Module` for a struct or an enum: `visit` visits all fields in the order of declaration.
///
/// Every field is a `Parameter`, a `Buffer`, a module, a `Vec`, an array, an `Option`, a tuple or a
/// `Box` of these, or a plain number, which is ignored. Names follow the fields, such as
/// `layers.0.weight`. Fields of other types need `#[module(skip)]`, so that no parameter is
/// omitted by mistake. For an enum the fields of the active variant are visited.
///
/// Attributes of the type:
/// - `#[module(crate = path)]` replaces the path `::pellucid::nn`, if the crate `pellucid` has another name.
/// - `#[module(no_capture = "why")]` declares that steps with this module cannot be captured: `supports_capture` of
///   every model that contains it returns the reason.
/// - `#[module(class = name)]`, an expression of type `&'static str`, replaces the name of the class.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(item: TokenStream) -> TokenStream {
    module::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
