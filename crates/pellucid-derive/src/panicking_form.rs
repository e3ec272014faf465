//! `#[panicking_form]` generates the form of a `try_` function that panics at the caller's line.

use crate::tensor_method::{plain_name, value_type};
use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, ImplItemFn, Lit, Meta, Result, Signature, TraitItemFn, Visibility, parse2,
    spanned::Spanned,
};

/// Expands `#[panicking_form]`: the function `try_name`, and before it the function `name`. A generated `forward` or
/// `forward_..` also records the line of its caller for the operations of the forward pass.
pub(crate) fn expand(arguments: &TokenStream, item: TokenStream) -> Result<TokenStream> {
    if !arguments.is_empty() {
        return Err(Error::new(arguments.span(), "`#[panicking_form]` takes no arguments"));
    }
    let (attrs, vis, sig, block) = parse_function(item)?;
    let try_name = sig.ident.to_string();
    let Some(name) = try_name.strip_prefix("try_") else {
        let help = "the function name must begin with `try_`; the generated function is named without this prefix";
        return Err(Error::new(sig.ident.span(), help));
    };
    let name = format_ident!("{name}", span = sig.ident.span());
    let note = try_name.starts_with("try_forward").then(|| quote!(let _call = pellucid_tensor::note_call_location();));
    let output = value_type(&sig.output)?;
    let mut receiver = None;
    let mut names = Vec::new();
    for parameter in &sig.inputs {
        match parameter {
            FnArg::Receiver(_) => receiver = Some(quote!(self.)),
            FnArg::Typed(_) => names.push(plain_name(parameter)?),
        }
    }
    let path = receiver.unwrap_or_else(|| quote!(Self::));

    let (docs, others): (Vec<&Attribute>, Vec<&Attribute>) = attrs.iter().partition(|a| a.path().is_ident("doc"));
    let errors = docs.iter().position(|a| text(a).is_some_and(|t| t.trim() == "# Errors"));
    let errors = errors.ok_or_else(|| Error::new(sig.span(), "the documentation must have a section `# Errors`"))?;
    let (docs, errors) = docs.split_at(errors);
    let aliases = docs.iter().chain(errors).filter(|a| text(a).is_none());
    let (docs, errors) = (docs.iter().filter(|a| text(a).is_some()), errors.iter().filter(|a| text(a).is_some()));
    let shared: Vec<_> = others.iter().filter(|a| !a.path().is_ident("track_caller")).collect();
    // The fallible form needs no `#[must_use]`, because `Result` has this attribute.
    let fallible_attributes = shared.iter().filter(|a| !a.path().is_ident("must_use"));
    let panics = format!("# Panics\nPanics if [`{try_name}`](Self::{try_name}) returns an error.");
    let summary = format!("Returns the result of [`{name}`](Self::{name}), or its error.");

    let (fallible, generics, inputs) = (&sig.ident, &sig.generics, &sig.inputs);
    let mut passed = inputs.clone();
    if let Some(FnArg::Receiver(receiver)) = passed.first_mut() {
        // The form that panics only passes `self` on, so it needs no `mut self`.
        receiver.mutability = None;
    }
    let where_clause = &generics.where_clause;
    let result = &sig.output;
    Ok(quote! {
        #(#docs)*
        #[doc = #panics]
        #(#aliases)*
        #(#shared)*
        #[track_caller]
        #vis fn #name #generics (#passed) -> #output #where_clause {
            #note
            unwrap(#path #fallible(#(#names),*))
        }

        #[doc = #summary]
        #[doc = ""]
        #(#errors)*
        #(#fallible_attributes)*
        #[track_caller]
        #vis fn #fallible #generics (#inputs) #result #where_clause #block
    })
}

/// Returns attributes, visibility, signature and body of a function. A required method of a trait has no body.
fn parse_function(item: TokenStream) -> Result<(Vec<Attribute>, Visibility, Signature, TokenStream)> {
    if let Ok(TraitItemFn { attrs, sig, default: None, .. }) = parse2(item.clone()) {
        return Ok((attrs, Visibility::Inherited, sig, quote!(;)));
    }
    let ImplItemFn { attrs, vis, sig, block, .. } = parse2(item)?;
    Ok((attrs, vis, sig, block.to_token_stream()))
}

/// Returns the text of a documentation attribute; `None` for other attributes, such as `#[doc(alias = "..")]`.
fn text(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            // The text of `#[doc = concat!(..)]` is not known here.
            _ => Some(String::new()),
        },
        _ => None,
    }
}
