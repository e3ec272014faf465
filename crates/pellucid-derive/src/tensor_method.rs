//! `#[tensor_method]` generates the method of an operation; `#[operation]` sets the operation name in errors.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Error, FnArg, GenericArgument, ItemFn, Pat, PathArguments, Result, ReturnType, Type, parse2, spanned::Spanned,
};

/// Expands `#[operation]`: every error of the body names the function, so that a composite operation reports the errors
/// of its parts as its own.
///
/// The body becomes an inner function and not a closure, because `#[track_caller]` has no effect through a closure.
pub(crate) fn operation(item: TokenStream) -> Result<TokenStream> {
    named(&parse2(item)?)
}

fn named(function: &ItemFn) -> Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    value_type(&sig.output)?;
    let name = &sig.ident;
    let arguments: Vec<_> = sig.inputs.iter().map(plain_name).collect::<Result<_>>()?;
    let inner = attrs.iter().filter(|a| a.path().is_ident("track_caller") || a.path().is_ident("allow"));
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            #(#inner)*
            #[inline(always)]
            #sig #block
            let mut result = #name(#(#arguments),*);
            if let Err(error) = &mut result {
                error.set_operation(stringify!(#name));
            }
            result
        }
    })
}

/// Returns the name of a parameter.
fn plain_name(parameter: &FnArg) -> Result<&syn::Ident> {
    match parameter {
        FnArg::Typed(typed) => match &*typed.pat {
            Pat::Ident(ident) => Ok(&ident.ident),
            other => Err(Error::new(other.span(), "a parameter of an operation must be a plain name")),
        },
        FnArg::Receiver(receiver) => Err(Error::new(receiver.span(), "an operation must be a free function")),
    }
}

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = parse2(item)?;
    let signature = &function.sig;
    let operation = named(&function)?;
    let name = &signature.ident;
    let mut parameters = signature.inputs.iter();
    if !matches!(parameters.next(), Some(FnArg::Typed(first)) if matches!(&*first.ty, Type::Reference(_))) {
        return Err(Error::new(signature.span(), "the first parameter of an operation must be `&Tensor`"));
    }
    let parameters: Vec<_> = parameters.collect();
    let arguments: Vec<_> = parameters.iter().map(|p| plain_name(p)).collect::<Result<_>>()?;
    let output = value_type(&signature.output)?;
    let generics = &signature.generics;
    let where_clause = &generics.where_clause;
    let docs = function.attrs.iter().filter(|a| a.path().is_ident("doc"));
    let panics = format!("# Panics\nWhere [`ops::{name}`](crate::ops::{name}) returns an error.");
    Ok(quote! {
        #operation

        impl crate::Tensor {
            #(#docs)*
            #[doc = ""]
            #[doc = #panics]
            #[track_caller]
            pub fn #name #generics (&self, #(#parameters),*) -> #output #where_clause {
                let _call = crate::autograd::called();
                crate::panic::unwrap(self::#name(self, #(#arguments),*))
            }
        }
    })
}

/// Returns `T` of the return type `Result<T>`.
fn value_type(output: &ReturnType) -> Result<&Type> {
    if let ReturnType::Type(_, ty) = output
        && let Type::Path(path) = &**ty
        && let Some(last) = path.path.segments.last()
        && last.ident == "Result"
        && let PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(GenericArgument::Type(value)) = arguments.args.first()
    {
        return Ok(value);
    }
    Err(Error::new(output.span(), "an operation must return `Result<T>`"))
}
