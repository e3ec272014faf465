//! Pellucid's procedural macros.
#![forbid(unsafe_code)]

mod module;
mod tensor_method;

use proc_macro::TokenStream;

/// Gives an operation its tensor_method: a method of `Tensor` that panics where the function returns an error.
///
/// The function's first parameter is `&Tensor` and its result `Result<T>`; the method takes the other
/// parameters and returns `T`, or panics at its caller's line with the typed error. Errors name the operation, as with
/// [`operation`].
#[proc_macro_attribute]
pub fn tensor_method(_arguments: TokenStream, item: TokenStream) -> TokenStream {
    tensor_method::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes the errors of an operation name it, also those of the operations that it is composed of.
///
/// The function's result is `Result<T>`.
#[proc_macro_attribute]
pub fn operation(_arguments: TokenStream, item: TokenStream) -> TokenStream {
    tensor_method::operation(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct or an enum a `Module`: its visit walks all fields, in the order of declaration.
///
/// Every field is a `Parameter`, a `Buffer`, a module, a `Vec`, an array, an `Option`, a tuple or a
/// `Box` of such, or a plain number, which is passed over; names follow the fields,
/// `layers.0.weight`. Anything else is marked `#[module(skip)]`, so that no parameter is ever
/// forgotten in silence. Of an enum, the variant that is there is walked.
///
/// Where the crate `pellucid` goes by another name, `#[module(crate = path)]` on the type says what
/// stands for `::pellucid::nn`. `#[module(no_capture = "why")]` on the type says that no step with such a module can be
/// captured: `supports_capture` of every model that has one returns the reason. `#[module(class = name)]`, an expression
/// of type `&'static str`, names the class where the type's own name would not do.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(item: TokenStream) -> TokenStream {
    module::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
