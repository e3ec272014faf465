//! `#[face]`: from the function of an operation to the method of the same name.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Error, FnArg, GenericArgument, ItemFn, Pat, PathArguments, Result, ReturnType, Type, parse2, spanned::Spanned,
};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = parse2(item)?;
    let signature = &function.sig;
    let name = &signature.ident;
    let mut parameters = signature.inputs.iter();
    if !matches!(parameters.next(), Some(FnArg::Typed(first)) if matches!(&*first.ty, Type::Reference(_))) {
        return Err(Error::new(signature.span(), "an operation's first parameter is `&Tensor`"));
    }
    let parameters: Vec<_> = parameters.collect();
    let arguments = parameters.iter().map(|p| match p {
        FnArg::Typed(typed) => match &*typed.pat {
            Pat::Ident(ident) => Ok(&ident.ident),
            other => Err(Error::new(other.span(), "a parameter of an operation is a plain name")),
        },
        FnArg::Receiver(receiver) => Err(Error::new(receiver.span(), "an operation is a free function")),
    });
    let arguments: Vec<_> = arguments.collect::<Result<_>>()?;
    let output = value_type(&signature.output)?;
    let generics = &signature.generics;
    let where_clause = &generics.where_clause;
    let docs = function.attrs.iter().filter(|a| a.path().is_ident("doc"));
    let panics = format!("# Panics\nWhere [`ops::{name}`](crate::ops::{name}) returns an error.");
    Ok(quote! {
        #function

        impl crate::Tensor {
            #(#docs)*
            #[doc = ""]
            #[doc = #panics]
            #[track_caller]
            pub fn #name #generics (&self, #(#parameters),*) -> #output #where_clause {
                crate::panic::unwrap(self::#name(self, #(#arguments),*))
            }
        }
    })
}

/// `T` of `Result<T>`.
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
    Err(Error::new(output.span(), "an operation returns `Result<T>`"))
}
