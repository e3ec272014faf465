//! The procedural macros of Pellucid.
//!
//! | module | contents |
//! | --- | --- |
//! | `collate` | `#[derive(Collate)]`: the batch of a struct, and its collation field by field |
//! | `module` | `#[derive(Module)]`: the visit of the parameters and buffers of a type |
//! | `panicking_form` | `#[panicking_form]`: the form of a `try_` function that panics |
//! | `tensor_method` | `#[tensor_method]`: the method of an operation; `#[operation]`: its name in errors |
#![forbid(unsafe_code)]

mod collate;
mod module;
mod panicking_form;
mod tensor_method;

use proc_macro::TokenStream;

/// Adds a method to `Tensor` that has the name of the operation and panics if the function returns an error.
///
/// The first parameter of the function is `&Tensor` and its result `Result<T>`. The method takes the other
/// parameters and returns `T`, or panics at the line of its caller with the typed error. It does not compile unless the
/// registry exports the function. Arguments, errors and the registry entry are the same as for [`operation`].
#[proc_macro_attribute]
pub fn tensor_method(arguments: TokenStream, item: TokenStream) -> TokenStream {
    tensor_method::expand(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Sets the operation name in all errors of a function, including errors of the operations that it calls, and defines
/// the entry of the operation in the registry (`ops/call/registry.rs`).
///
/// The function must return `Result<T>`. Parameters of type `impl Into<T>` are converted first: the body is compiled
/// once for `T`, and `k` replaces `k.into()` in it.
///
/// Arguments:
/// - `autocast = Half` or `autocast = Single` is the autocast policy of the operation. The default is `Promote`.
/// - `entry = name` is the name of the entry, if another operation has the name of the function.
/// - `transparent` keeps the names that the body sets in errors.
#[proc_macro_attribute]
pub fn operation(arguments: TokenStream, item: TokenStream) -> TokenStream {
    tensor_method::operation(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Adds the form of a method or constructor that panics at the caller's line if the function returns an error.
///
/// The name of the function begins with `try_`, its result is `Result<T>`, and its documentation is written for the
/// form that panics, which has the same name without `try_`. The section `# Errors` comes last. The function `unwrap`
/// must be in scope.
#[proc_macro_attribute]
pub fn panicking_form(arguments: TokenStream, item: TokenStream) -> TokenStream {
    panicking_form::expand(&arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements `Module` for a struct or an enum: `visit` visits all fields in the order of declaration.
///
/// Every field is a `Parameter`, a `Buffer`, a module, a container of these (`Vec`, array, `Option`, tuple, `Box`,
/// map), or a plain value such as a number, a string or a `DType`, which has no parameters. Names follow the fields,
/// such as `layers.0.weight`. A field of another type without `#[module(skip)]` or `#[module(setting)]` is a compile
/// error, so no parameter is omitted by mistake. For an enum, the fields of the active variant are visited.
///
/// A field with `#[module(setting)]` is a plain value of a type that is `Debug + Send + Sync`. It has no parameters,
/// and `tree` shows it.
///
/// Attributes of the type:
/// - `#[module(display)]` implements `Display` with `tree`: a model is printed as the tree of its modules.
/// - `#[module(crate = path)]` replaces the path `::pellucid::nn`, if the crate `pellucid` has another name.
/// - `#[module(no_capture = "why")]` declares that steps with this module cannot be captured: `supports_capture` of
///   every model that contains it returns the reason.
/// - `#[module(class = name)]`, where `name` is an expression of type `&'static str`, replaces the name of the class.
/// - `#[module(role = BatchNorm)]` declares a role, a variant of `ModuleRole`.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(item: TokenStream) -> TokenStream {
    module::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements `Collate` for a struct with named fields whose types can be collated. The batch of a struct `Sample` is
/// the struct `SampleBatch`, whose fields have the same names and visibilities; it implements `Clone` and `Debug`.
///
/// `#[collate(crate = path)]` replaces the path `::pellucid::data`, if the crate `pellucid` has another name.
#[proc_macro_derive(Collate, attributes(collate))]
pub fn derive_collate(item: TokenStream) -> TokenStream {
    collate::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
