//! `#[derive(Collate)]`: generates the batch of a struct, and its collation field by field.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Attribute, Data, DeriveInput, Error, Fields, Ident, Path, Result, Type, Visibility, parse_quote, parse2};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = parse2(item)?;
    let (name, visibility) = (&input.ident, &input.vis);
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(name.span(), "`Collate` can be derived for structs only"));
    };
    let Fields::Named(named) = &data.fields else {
        return Err(Error::new(name.span(), "`Collate` can be derived for structs with named fields only"));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new(
            name.span(),
            "`Collate` cannot be derived for a struct with generic parameters; implement it",
        ));
    }
    let data_path = crate_path(&input.attrs)?;
    let fields: Vec<(&Ident, &Type, &Visibility)> =
        named.named.iter().filter_map(|field| Some((field.ident.as_ref()?, &field.ty, &field.vis))).collect();
    let names: Vec<&Ident> = fields.iter().map(|(name, ..)| *name).collect();
    let types: Vec<&Type> = fields.iter().map(|(_, ty, _)| *ty).collect();
    let visibilities: Vec<&Visibility> = fields.iter().map(|(.., visibility)| *visibility).collect();
    let lists: Vec<Ident> = names.iter().map(|name| format_ident!("list_of_{name}")).collect();
    let batch = format_ident!("{name}Batch");
    let summary = format!("A batch of samples of the type [`{name}`].");
    let field_docs = names.iter().map(|name| format!("The field `{name}` of all samples."));
    Ok(quote! {
        #[doc = #summary]
        #[automatically_derived]
        #[derive(Clone, Debug)]
        #visibility struct #batch {
            #(
                #[doc = #field_docs]
                #visibilities #names: <#types as #data_path::Collate>::Batch,
            )*
        }

        #[automatically_derived]
        impl #data_path::Collate for #name {
            type Batch = #batch;

            fn collate(
                samples: ::std::vec::Vec<Self>,
            ) -> ::core::result::Result<#batch, #data_path::derive::Error> {
                #(let mut #lists = ::std::vec::Vec::with_capacity(samples.len());)*
                for sample in samples {
                    #(#lists.push(sample.#names);)*
                }
                ::core::result::Result::Ok(#batch {
                    #(#names: <#types as #data_path::Collate>::collate(#lists)?,)*
                })
            }
        }

        #[automatically_derived]
        impl #data_path::BatchToDevice for #batch {
            fn to_device(
                self,
                device: #data_path::derive::Device,
            ) -> ::core::result::Result<Self, #data_path::derive::Error> {
                ::core::result::Result::Ok(#batch {
                    #(#names: #data_path::BatchToDevice::to_device(self.#names, device)?,)*
                })
            }
        }
    })
}

/// Returns the path of the module that contains `Collate`: `#[collate(crate = path)]`, or `::pellucid::data`.
fn crate_path(attributes: &[Attribute]) -> Result<Path> {
    let mut path = parse_quote!(::pellucid::data);
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("collate")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("unknown argument; `#[collate(..)]` accepts only `crate = path`"));
            }
            path = meta.value()?.parse()?;
            Ok(())
        })?;
    }
    Ok(path)
}
