//! `#[derive(Module)]`: generates the visit of the parameters and buffers of a type.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use std::collections::HashSet;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Fields, Ident, Index, LitStr, Path, Result, Type, parse_quote, parse2,
};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let mut input: DeriveInput = parse2(item)?;
    let arguments = ModuleAttribute::from_attributes(&input.attrs)?;
    let rejection = match &arguments.no_capture {
        Some(reason) => quote!(::core::option::Option::Some(#reason)),
        None => quote!(::core::option::Option::None),
    };
    let class = match &arguments.class {
        Some(class) => quote!(#class),
        None => quote!(::core::any::type_name::<Self>()),
    };
    let module = arguments.module_path();
    let role = arguments.role.as_ref().map(|role| quote!(visitor.role(#module::ModuleRole::#role);));
    let body = match &input.data {
        Data::Struct(data) => {
            let visits = visits(&module, &data.fields, |name, index| match name {
                Some(name) => quote!(&self.#name),
                None => quote!(&self.#index),
            })?;
            quote!(#(#visits)*)
        }
        Data::Enum(data) => {
            let arms = data.variants.iter().map(|variant| {
                let name = &variant.ident;
                let bound = |index: &Index| format_ident!("field_{}", index.index);
                let pattern = match &variant.fields {
                    Fields::Unit => quote!(Self::#name),
                    Fields::Unnamed(fields) => {
                        let names = (0..fields.unnamed.len()).map(|i| bound(&Index::from(i)));
                        quote!(Self::#name(#(#names),*))
                    }
                    Fields::Named(fields) => {
                        let pairs = fields.named.iter().enumerate().map(|(i, field)| {
                            let (name, local) = (&field.ident, bound(&Index::from(i)));
                            quote!(#name: #local)
                        });
                        quote!(Self::#name { #(#pairs),* })
                    }
                };
                let visits = visits(&module, &variant.fields, |_, index| {
                    let local = bound(index);
                    quote!(#local)
                })?;
                Ok(quote!(#[allow(unused_variables)] #pattern => { #(#visits)* }))
            });
            let arms = arms.collect::<Result<Vec<_>>>()?;
            quote!(match self { #(#arms)* })
        }
        Data::Union(data) => return Err(Error::new(data.union_token.span, "a module must be a struct or an enum")),
    };
    bound_parameters(&mut input, &module)?;
    let name = &input.ident;
    let (generics, parameters, conditions) = input.generics.split_for_impl();
    let display = arguments.display.then(|| {
        quote! {
            #[automatically_derived]
            impl #generics ::core::fmt::Display for #name #parameters #conditions {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    ::core::fmt::Display::fmt(&#module::Module::tree(self), f)
                }
            }
        }
    });
    Ok(quote! {
        #[automatically_derived]
        impl #generics #module::Module for #name #parameters #conditions {}

        #[automatically_derived]
        impl #generics #module::Visit for #name #parameters #conditions {
            fn visit(&self, visitor: &mut #module::Visitor<'_>) {
                #role
                visitor.module_as(self, #class, #rejection);
                #body
            }
        }
        #display
    })
}

/// Generates one visit for each field that is not skipped. `access` returns the expression that accesses a field.
fn visits(
    module: &Path,
    fields: &Fields,
    access: impl Fn(Option<&Ident>, &Index) -> TokenStream,
) -> Result<Vec<TokenStream>> {
    let mut visits = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let attribute = ModuleAttribute::from_attributes(&field.attrs)?;
        if attribute.skip {
            continue;
        }
        let index = Index::from(index);
        let name = match &field.ident {
            // The name of the raw identifier `r#type` is `type`.
            Some(name) => name.to_string().trim_start_matches("r#").to_string(),
            None => index.index.to_string(),
        };
        let value = access(field.ident.as_ref(), &index);
        let method = if attribute.setting { quote!(setting) } else { quote!(field) };
        visits.push(quote!(#module::Visitor::#method(visitor, #name, #value);));
    }
    Ok(visits)
}

/// Adds the bound `T: Visit` for every type parameter that is used in a visited field, and `Send + Sync` for the
/// other type parameters, since every module must be `Send + Sync`.
fn bound_parameters(input: &mut DeriveInput, module: &Path) -> Result<()> {
    let fields: Vec<&Fields> = match &input.data {
        Data::Struct(data) => vec![&data.fields],
        Data::Enum(data) => data.variants.iter().map(|v| &v.fields).collect(),
        Data::Union(_) => Vec::new(),
    };
    let mut words: HashSet<String> = HashSet::new();
    for field in fields.into_iter().flatten() {
        let attribute = ModuleAttribute::from_attributes(&field.attrs)?;
        if !attribute.skip && !attribute.setting && !is_phantom(&field.ty) {
            let ty = field.ty.to_token_stream().to_string();
            words.extend(ty.split(|c: char| !c.is_alphanumeric() && c != '_').map(String::from));
        }
    }
    for parameter in input.generics.type_params_mut() {
        if words.contains(&parameter.ident.to_string()) {
            parameter.bounds.push(parse_quote!(#module::Visit));
        } else {
            parameter.bounds.push(parse_quote!(Send));
            parameter.bounds.push(parse_quote!(Sync));
        }
    }
    Ok(())
}

/// Returns true for `PhantomData<T>`, which contains no `T`.
fn is_phantom(ty: &Type) -> bool {
    matches!(ty, Type::Path(ty) if ty.path.segments.last().is_some_and(|last| last.ident == "PhantomData"))
}

/// The arguments of `#[module(..)]`.
#[derive(Default)]
struct ModuleAttribute {
    skip: bool,
    setting: bool,
    display: bool,
    path: Option<Path>,
    no_capture: Option<LitStr>,
    class: Option<Expr>,
    role: Option<Ident>,
}

impl ModuleAttribute {
    fn from_attributes(attributes: &[Attribute]) -> Result<ModuleAttribute> {
        let mut arguments = ModuleAttribute::default();
        for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("skip") {
                    arguments.skip = true;
                    Ok(())
                } else if meta.path.is_ident("setting") {
                    arguments.setting = true;
                    Ok(())
                } else if meta.path.is_ident("display") {
                    arguments.display = true;
                    Ok(())
                } else if meta.path.is_ident("crate") {
                    arguments.path = Some(meta.value()?.parse()?);
                    Ok(())
                } else if meta.path.is_ident("no_capture") {
                    arguments.no_capture = Some(meta.value()?.parse()?);
                    Ok(())
                } else if meta.path.is_ident("class") {
                    arguments.class = Some(meta.value()?.parse()?);
                    Ok(())
                } else if meta.path.is_ident("role") {
                    arguments.role = Some(meta.value()?.parse()?);
                    Ok(())
                } else {
                    let known = "`skip` or `setting` on a field, or `display`, `crate = path`, `class = name`, \
                                 `role = variant` or `no_capture = \"why\"` on the type";
                    Err(meta.error(format!("expected {known}")))
                }
            })?;
        }
        Ok(arguments)
    }

    /// Returns the path of the module that contains `Module` and `Visitor`.
    fn module_path(&self) -> Path {
        self.path.clone().unwrap_or_else(|| parse_quote!(::pellucid::nn))
    }
}
