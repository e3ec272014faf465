//! `#[tensor_method]` generates a `Tensor` method for an operation; `#[operation]` sets the operation name in errors.
//! Both define the registry entry of the operation.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{
    Error, FnArg, GenericArgument, Ident, ItemFn, Pat, PathArguments, Result, ReturnType, Token, Type, TypeParamBound,
    Visibility, parse_quote, parse2, spanned::Spanned,
};

/// The types of sizes, axes and counts, and of options that contain them.
const SIZE_TYPES: [&str; 13] = [
    "usize",
    "isize",
    "Shape",
    "IntList",
    "Axes",
    "Spatial",
    "PoolOptions",
    "ConvOptions",
    "Sections",
    "SplitSizes",
    "PadWidth",
    "Bins",
    "Resize",
];

/// The arguments of `#[tensor_method]` and `#[operation]`.
#[derive(Default)]
struct OperationAttribute {
    /// The autocast policy of the operation, a variant of `AutocastPolicy`; the default is `Promote`.
    autocast: Option<Ident>,
    /// The name of the registry entry, if it is not the name of the function.
    entry: Option<Ident>,
    /// Whether errors keep the operation name that the body sets, instead of the name of the function.
    transparent: bool,
}

impl Parse for OperationAttribute {
    fn parse(input: ParseStream<'_>) -> Result<OperationAttribute> {
        let mut arguments = OperationAttribute::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            match key.to_string().as_str() {
                "transparent" => arguments.transparent = true,
                "autocast" => arguments.autocast = Some(value(input)?),
                "entry" => arguments.entry = Some(value(input)?),
                _ => {
                    let help = "the arguments are `autocast = <variant of AutocastPolicy>`, `entry = <name>` and \
                                `transparent`";
                    return Err(Error::new(key.span(), help));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(arguments)
    }
}

/// Parses `= value`.
fn value(input: ParseStream<'_>) -> Result<Ident> {
    input.parse::<Token![=]>()?;
    input.parse()
}

/// Expands `#[operation]`: every error of the body names the function. A composite operation thus reports the errors
/// of its parts as its own.
pub(crate) fn operation(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    registered(&parse2(arguments)?, &parse2(item)?)
}

/// Returns the function and its registry entry.
fn registered(arguments: &OperationAttribute, function: &ItemFn) -> Result<TokenStream> {
    let entry = registry_entry(arguments, function);
    let function = if arguments.transparent { function.to_token_stream() } else { named(function)? };
    Ok(quote!(#function #entry))
}

/// Returns the registry entry of the operation. The entry is a constant of `Entries`; it contains the properties of
/// the operation.
fn registry_entry(arguments: &OperationAttribute, function: &ItemFn) -> TokenStream {
    let name = &function.sig.ident;
    let entry = arguments.entry.as_ref().unwrap_or(name);
    let policy = arguments.autocast.as_ref().map_or_else(|| quote!(Promote), Ident::to_token_stream);
    let takes_sizes = function.sig.inputs.iter().any(|parameter| has_size_type(parameter.to_token_stream()));
    quote! {
        impl crate::ops::call::registry::Entries {
            #[allow(non_upper_case_globals)]
            pub(crate) const #entry: crate::ops::call::registry::OperationInfo = crate::ops::call::registry::OperationInfo {
                name: stringify!(#name),
                autocast: crate::AutocastPolicy::#policy,
                takes_sizes: #takes_sizes,
            };
        }
    }
}

/// Returns true if one of the tokens is the name of a type of [`SIZE_TYPES`].
fn has_size_type(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => SIZE_TYPES.iter().any(|ty| ident == ty),
        TokenTree::Group(group) => has_size_type(group.stream()),
        _ => false,
    })
}

/// Returns the function, changed so that its errors name it as the operation and contain the line of its caller.
///
/// The body becomes an inner function and not a closure, because `#[track_caller]` has no effect through a closure.
fn named(function: &ItemFn) -> Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    value_type(&sig.output)?;
    let name = &sig.ident;
    let arguments: Vec<_> = sig.inputs.iter().map(plain_name).collect::<Result<_>>()?;
    let is_tracked = attrs.iter().any(|a| a.path().is_ident("track_caller"));
    let track_caller = (!is_tracked).then(|| quote!(#[track_caller]));
    let inner = attrs.iter().filter(|a| a.path().is_ident("track_caller") || a.path().is_ident("allow"));
    if let Some(converted) = converted(function)? {
        let values = sig.inputs.iter().zip(&arguments).map(|(parameter, name)| match into_type(parameter) {
            Some(_) => quote!(#name.into()),
            None => quote!(#name),
        });
        let converted = named(&converted)?;
        return Ok(quote! {
            #(#attrs)*
            #track_caller
            #[inline]
            #vis #sig {
                #converted
                #name(#(#values),*)
            }
        });
    }
    Ok(quote! {
        #(#attrs)*
        #track_caller
        #vis #sig {
            #(#inner)*
            #[inline(always)]
            #sig #block
            let _scope = crate::engine::OperationScope::enter(stringify!(#name));
            let mut result = #name(#(#arguments),*);
            if let Err(error) = &mut result {
                error.set_operation(stringify!(#name));
                error.set_location(::std::panic::Location::caller());
            }
            result
        }
    })
}

/// Returns the function with a parameter of type `T` for each `impl Into<T>`, or `None` if it has none.
///
/// The body is therefore compiled once, and not for every combination of argument types. In the body, `k` replaces
/// `k.into()`.
fn converted(function: &ItemFn) -> Result<Option<ItemFn>> {
    let mut converted = function.clone();
    let mut names = Vec::new();
    for parameter in &mut converted.sig.inputs {
        if let Some(target) = into_type(parameter) {
            names.push(plain_name(parameter)?.to_string());
            if let FnArg::Typed(typed) = parameter {
                *typed.ty = target;
            }
        }
    }
    if names.is_empty() {
        return Ok(None);
    }
    let block = &function.block;
    converted.block = parse2(without_conversions(quote!(#block), &names))?;
    converted.vis = Visibility::Inherited;
    converted.attrs.retain(|a| a.path().is_ident("track_caller") || a.path().is_ident("allow"));
    // `let k = k.into();` became `let k = k;`.
    converted.attrs.push(parse_quote!(#[allow(clippy::redundant_locals)]));
    Ok(Some(converted))
}

/// Returns `T` of a parameter of type `impl Into<T>`.
fn into_type(parameter: &FnArg) -> Option<Type> {
    if let FnArg::Typed(typed) = parameter
        && let Type::ImplTrait(list) = &*typed.ty
        && let Some(TypeParamBound::Trait(bound)) = list.bounds.first()
        && let Some(last) = bound.path.segments.last()
        && last.ident == "Into"
        && let PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(GenericArgument::Type(target)) = arguments.args.first()
    {
        return Some(target.clone());
    }
    None
}

/// Replaces `k.into()` by `k` for the named variables.
fn without_conversions(tokens: TokenStream, names: &[String]) -> TokenStream {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in tokens {
        let token = match token {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), without_conversions(group.stream(), names));
                inner.set_span(group.span());
                TokenTree::Group(inner)
            }
            other => other,
        };
        kept.push(token);
        if let [.., TokenTree::Ident(name), TokenTree::Punct(dot), TokenTree::Ident(into), TokenTree::Group(call)] =
            &kept[..]
            && names.iter().any(|n| name == n)
            && (dot.as_char(), call.delimiter()) == ('.', Delimiter::Parenthesis)
            && into == "into"
        {
            kept.truncate(kept.len() - 3);
        }
    }
    kept.into_iter().collect()
}

/// Returns the name of a parameter.
pub(crate) fn plain_name(parameter: &FnArg) -> Result<&syn::Ident> {
    match parameter {
        FnArg::Typed(typed) => match &*typed.pat {
            Pat::Ident(ident) => Ok(&ident.ident),
            other => {
                Err(Error::new(other.span(), "each parameter of an operation must be a plain name, not a pattern"))
            }
        },
        FnArg::Receiver(receiver) => {
            Err(Error::new(receiver.span(), "an operation must be a free function; remove `self`"))
        }
    }
}

/// Expands `#[tensor_method]`. The method calls the function by its path in `ops`, and therefore does not compile
/// unless `ops` exports the function.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = parse2(item)?;
    let signature = &function.sig;
    let operation = registered(&parse2(arguments)?, &function)?;
    let name = &signature.ident;
    let mut parameters = signature.inputs.iter();
    if !matches!(parameters.next(), Some(FnArg::Typed(first)) if matches!(&*first.ty, Type::Reference(_))) {
        let message =
            "the first parameter of a method must be `&Tensor`; `#[operation]` defines an operation without a method";
        return Err(Error::new(signature.span(), message));
    }
    let parameters: Vec<_> = parameters.collect();
    let arguments: Vec<_> = parameters.iter().map(|p| plain_name(p)).collect::<Result<_>>()?;
    let output = value_type(&signature.output)?;
    let generics = &signature.generics;
    let where_clause = &generics.where_clause;
    let docs = function.attrs.iter().filter(|a| a.path().is_ident("doc"));
    // `copy_` and other methods whose names end with an underscore write in place.
    let is_in_place = name.to_string().ends_with('_') && name != "where_";
    let must_use = (!is_in_place)
        .then(|| quote!(#[must_use = "the method returns a new tensor and does not modify its operands"]));
    let panics = format!("# Panics\nPanics if [`ops::{name}`](crate::ops::{name}) returns an error.");
    Ok(quote! {
        #operation

        impl crate::Tensor {
            #(#docs)*
            #[doc = ""]
            #[doc = #panics]
            #must_use
            #[inline]
            #[track_caller]
            pub fn #name #generics (&self, #(#parameters),*) -> #output #where_clause {
                let _call = crate::autograd::note_call_location();
                crate::panic::unwrap(crate::ops::#name(self, #(#arguments),*))
            }
        }
    })
}

/// Returns `T` of the return type `Result<T>`.
pub(crate) fn value_type(output: &ReturnType) -> Result<&Type> {
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
