//! Translation of scalar functions from Rust to WGSL.
//!
//! The functions of `pellucid_simd::math::single` and `double` are written in a small subset of Rust: constants, `let`,
//! `if`, `while`, assignments, `return`, calls, arithmetic, comparisons and operations on bit patterns. The translator
//! executes a function on symbolic values: constants are folded, and every other operation becomes one line of WGSL.
//! Operations on floats call functions of the library, which round exactly as the Rust text requires. 64-bit integers
//! and `f64` are pairs of words.
//!
//! The text of `double` is translated twice: to `f64`, and to sums of two `f32`, which have 48 significant bits and
//! need a third of the instructions. Functions of `f32` with long series, such as the Bessel functions, are computed
//! with these sums.
//!
//! A function without assignments, loops and `return` is inlined where it is called, and its `if` expressions select
//! one of two computed values. Any other function becomes a function of WGSL with the same control flow.
//!
//! | file | contents |
//! | --- | --- |
//! | this file | symbolic values, the sources, the text of a function |
//! | `statements` | blocks, assignments, branches and loops |
//! | `operations` | names, calls, methods, casts and operators |

mod operations;
mod statements;

use super::special_functions::has_two_floats;
use super::types::u64_literal;
use pellucid_ir::lock;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::LazyLock;
use syn::{Item, ItemFn, Lit};

/// The type of a symbolic value.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ValueType {
    F32,
    I32,
    U32,
    Bool,
    F64,
    /// The unevaluated sum of two `f32` in place of an `f64`.
    TwoFloats,
    I64,
    U64,
}

impl ValueType {
    /// Returns the type for the name of a Rust type; `S` is the type parameter of functions that are generic over
    /// `Single`.
    fn named(ty: &syn::Type) -> Option<ValueType> {
        let syn::Type::Path(path) = ty else { return None };
        Some(match &*last_segment(&path.path) {
            "f32" | "S" => ValueType::F32,
            "f64" => ValueType::F64,
            "i32" => ValueType::I32,
            "u32" | "usize" => ValueType::U32,
            "i64" => ValueType::I64,
            "u64" => ValueType::U64,
            "bool" => ValueType::Bool,
            _ => return None,
        })
    }

    fn wgsl(self) -> &'static str {
        match self {
            ValueType::F32 => "f32",
            ValueType::I32 => "i32",
            ValueType::U32 => "u32",
            ValueType::Bool => "bool",
            ValueType::F64 | ValueType::I64 | ValueType::U64 => "vec2<u32>",
            ValueType::TwoFloats => "vec2<f32>",
        }
    }

    /// Returns the prefix of the functions of the type in WGSL.
    fn prefix(self) -> &'static str {
        match self {
            ValueType::F64 => "d",
            ValueType::TwoFloats => "t",
            ValueType::I64 | ValueType::U64 => "l",
            _ => "f",
        }
    }

    /// Returns true if the type stands for `f64`.
    fn is_wide(self) -> bool {
        matches!(self, ValueType::F64 | ValueType::TwoFloats)
    }
}

/// A value of the translated function: a WGSL expression, or a constant whose bits are known.
#[derive(Clone, Debug)]
enum Symbol {
    /// The name of a WGSL value.
    Name(ValueType, String),
    /// The name of a WGSL variable. Its value is copied when it is read.
    Variable(ValueType, String),
    /// A known `f32`.
    F32(f32),
    /// A known `f64`, or a float literal without a type.
    F64(f64),
    /// A known `i32`.
    I32(i32),
    /// A known `u32`.
    U32(u32),
    /// An integer literal without a type.
    Integer(i128),
    /// A tuple or an array.
    List(Vec<Symbol>),
}

/// The reason why a function cannot be translated, with the name of the construct.
type Untranslatable = String;

/// The module of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum SourceModule {
    /// `pellucid_simd::math::single`, functions of `f32`.
    Single,
    /// `pellucid_simd::math::double`, functions of `f64`.
    Double,
    /// The functions of `pellucid_simd::math::double`, computed with sums of two `f32`.
    TwoFloats,
}

impl SourceModule {
    /// Returns the type of the functions.
    fn float(self) -> ValueType {
        match self {
            SourceModule::Single => ValueType::F32,
            SourceModule::Double => ValueType::F64,
            SourceModule::TwoFloats => ValueType::TwoFloats,
        }
    }

    /// Returns the type that represents `f64` in the module.
    fn wide(self) -> ValueType {
        if self == SourceModule::TwoFloats { ValueType::TwoFloats } else { ValueType::F64 }
    }

    /// Returns the prefix of the names of the module's functions in WGSL.
    fn prefix(self) -> &'static str {
        self.float().prefix()
    }

    /// Returns the module of `pellucid_simd` that contains the functions.
    fn source_module(self) -> SourceModule {
        if self == SourceModule::TwoFloats { SourceModule::Double } else { self }
    }

    /// Returns the type of integer literals.
    fn integer(self) -> ValueType {
        if self == SourceModule::Single { ValueType::I32 } else { ValueType::I64 }
    }
}

/// The functions and constants of all sources.
struct Sources {
    functions: HashMap<(SourceModule, String), ItemFn>,
    constants: HashMap<(SourceModule, String), syn::ItemConst>,
}

thread_local! {
    // The syntax trees of `syn` are not `Sync`; translated text is cached for all threads in `translated`.
    static SOURCES: OnceCell<Sources> = const { OnceCell::new() };
}

fn parse_sources() -> Sources {
    let mut sources = Sources { functions: HashMap::new(), constants: HashMap::new() };
    let single = pellucid_simd::math::single::SOURCES.map(|source| (SourceModule::Single, source));
    let double = pellucid_simd::math::double::SOURCES.map(|source| (SourceModule::Double, source));
    for (module, source) in single.into_iter().chain(double) {
        let items = syn::parse_file(source).map(|file| file.items).unwrap_or_default();
        for item in items {
            match item {
                Item::Fn(f) => drop(sources.functions.insert((module, f.sig.ident.to_string()), f)),
                Item::Const(c) => drop(sources.constants.insert((module, c.ident.to_string()), c)),
                _ => {}
            }
        }
    }
    sources
}

/// Returns the WGSL text of a function: `f_exp` is the function `exp` of `pellucid_simd::math::single`, `d_exp` the
/// function of `double`, and `t_exp` the function with sums of two `f32`. If a function exists in `double` only, its
/// form with the prefix `f_`, such as `f_lgamma`, rounds the result.
///
/// # Errors
/// Returns the name of the first construct that is not in the subset, for example a call to `libm`.
pub(crate) fn translated(name: &str) -> Result<String, Untranslatable> {
    type Cache = HashMap<String, Result<String, Untranslatable>>;
    static CACHE: LazyLock<std::sync::Mutex<Cache>> = LazyLock::new(Default::default);
    let mut cache = lock(&CACHE);
    if let Some(cached) = cache.get(name) {
        return cached.clone();
    }
    let source = SOURCES.with(|cell| {
        let sources = cell.get_or_init(parse_sources);
        let (module, rust_name) = match name.split_at_checked(2) {
            Some(("f_", rust_name)) => (SourceModule::Single, rust_name),
            Some(("d_", rust_name)) => (SourceModule::Double, rust_name),
            Some(("t_", rust_name)) => (SourceModule::TwoFloats, rust_name),
            _ => return Err(format!("no function `{name}`")),
        };
        let exists = |module| sources.functions.contains_key(&(module, rust_name.to_string()));
        if module == SourceModule::Single && !exists(module) && exists(SourceModule::Double) {
            let module = if has_two_floats(rust_name) { SourceModule::TwoFloats } else { SourceModule::Double };
            return WgslTranslator::new(sources, module).rounded_function_source(rust_name);
        }
        WgslTranslator::new(sources, module).function_source(rust_name)
    });
    cache.insert(name.to_string(), source.clone());
    source
}

/// The names that are visible in a function body.
type Scope = HashMap<String, Symbol>;

/// The types of the parameters and of the result of a function. A result of two numbers is a tuple.
struct FunctionTypes {
    parameters: Vec<ValueType>,
    result: Vec<ValueType>,
}

impl FunctionTypes {
    fn from_function(function: &ItemFn, module: SourceModule) -> Result<FunctionTypes, Untranslatable> {
        let named = |ty: &syn::Type| match ValueType::named(ty) {
            Some(ValueType::F64) => Ok(module.wide()),
            named => named.ok_or("a type outside the subset"),
        };
        let mut parameters = Vec::new();
        for input in &function.sig.inputs {
            let syn::FnArg::Typed(typed) = input else { return Err("a method".into()) };
            parameters.push(named(&typed.ty)?);
        }
        let syn::ReturnType::Type(_, result) = &function.sig.output else { return Err("no result".into()) };
        let result = match &**result {
            syn::Type::Tuple(tuple) => tuple.elems.iter().map(named).collect::<Result<_, _>>()?,
            single => vec![named(single)?],
        };
        Ok(FunctionTypes { parameters, result })
    }

    /// Returns the type of the result in WGSL. A tuple of two `f64` is a vector of four elements.
    fn result_type(&self) -> Result<&'static str, Untranslatable> {
        match self.result[..] {
            [single] => Ok(single.wgsl()),
            [ValueType::F64, ValueType::F64] => Ok("vec4<u32>"),
            [ValueType::TwoFloats, ValueType::TwoFloats] => Ok("vec4<f32>"),
            _ => Err("a tuple as a result".into()),
        }
    }
}

/// The state of the translation of one function.
struct WgslTranslator<'a> {
    sources: &'a Sources,
    lines: Vec<String>,
    /// The declarations of arrays at the start of the function.
    arrays: Vec<String>,
    /// The functions that are being inlined or translated.
    active: Vec<(SourceModule, String)>,
    /// The module of the function that is executed.
    module: SourceModule,
    /// The number of names so far.
    names: usize,
    /// The result types of a function that is translated with its control flow; `None` while a function is inlined.
    returns: Option<Vec<ValueType>>,
}

impl<'a> WgslTranslator<'a> {
    fn new(sources: &'a Sources, module: SourceModule) -> WgslTranslator<'a> {
        WgslTranslator { sources, lines: vec![], arrays: vec![], active: vec![], module, names: 0, returns: None }
    }

    fn function(&self, name: &str) -> Result<&'a ItemFn, Untranslatable> {
        let function = self.sources.functions.get(&(self.module.source_module(), name.to_string()));
        function.ok_or_else(|| format!("no function `{name}`"))
    }

    /// Returns the text of a function of the module.
    fn function_source(mut self, name: &str) -> Result<String, Untranslatable> {
        let function = self.function(name)?;
        let types = FunctionTypes::from_function(function, self.module)?;
        let (mut parameters, mut arguments) = (Vec::new(), Vec::new());
        for (k, ty) in types.parameters.iter().enumerate() {
            parameters.push(format!("x{k}: {}", ty.wgsl()));
            arguments.push(Symbol::Name(*ty, format!("x{k}")));
        }
        let header =
            format!("fn {}_{name}({}) -> {}", self.module.prefix(), parameters.join(", "), types.result_type()?);
        let value = if statements::is_straight(&function.block) {
            Some(self.inline(function, arguments, &[])?)
        } else {
            self.enter(name)?;
            self.returns = Some(types.result.clone());
            let scope = self.parameter_scope(function, arguments)?;
            self.statements(&function.block, scope)?
        };
        match value {
            Some(value) => self.return_line(&value, &types.result)?,
            // Every path returns before this point, but WGSL requires a `return` at the end.
            None => self.lines.push(format!("return {}();", types.result_type()?)),
        }
        let body: String = self.arrays.iter().chain(&self.lines).map(|line| format!("    {line}\n")).collect();
        Ok(format!("{header} {{\n{body}}}\n"))
    }

    /// Returns the text of an `f32` function that rounds the result of an `f64` function.
    fn rounded_function_source(self, name: &str) -> Result<String, Untranslatable> {
        let count = FunctionTypes::from_function(self.function(name)?, self.module)?.parameters.len();
        let prefix = self.module.prefix();
        self.function_source(name)?;
        let join = |item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
        let (parameters, arguments) = (join(&|k| format!("x{k}: f32")), join(&|k| format!("{prefix}_from_f32(x{k})")));
        let result = format!("{prefix}_to_f32({prefix}_{name}({arguments}))");
        Ok(format!("fn f_{name}({parameters}) -> f32 {{\n    return {result};\n}}\n"))
    }

    /// Adds a function to the active ones. Returns an error for a recursive function, which would be active twice.
    fn enter(&mut self, name: &str) -> Result<(), Untranslatable> {
        let function = (self.module, name.to_string());
        if self.active.contains(&function) {
            return Err(format!("the recursive function `{name}`"));
        }
        self.active.push(function);
        Ok(())
    }

    /// Returns the scope of a function body with the arguments of a call.
    fn parameter_scope(&mut self, function: &ItemFn, arguments: Vec<Symbol>) -> Result<Scope, Untranslatable> {
        let mut scope = Scope::new();
        for (input, argument) in function.sig.inputs.iter().zip(arguments) {
            let syn::FnArg::Typed(typed) = input else { return Err("a method".into()) };
            let argument = with_declared_type(argument, &typed.ty);
            self.bind(&mut scope, &typed.pat, argument)?;
        }
        Ok(scope)
    }

    /// Adds the line that returns a value of these types.
    fn return_line(&mut self, value: &Symbol, types: &[ValueType]) -> Result<(), Untranslatable> {
        let values = match value {
            Symbol::List(values) => &values[..],
            single => std::slice::from_ref(single),
        };
        let exprs = values.iter().zip(types).map(|(value, &ty)| self.expr_of(value, ty, "a result"));
        let exprs = exprs.collect::<Result<Vec<String>, _>>()?;
        self.lines.push(match &exprs[..] {
            [expr] => format!("return {expr};"),
            exprs if types.contains(&ValueType::TwoFloats) => format!("return vec4<f32>({});", exprs.join(", ")),
            exprs => format!("return vec4<u32>({});", exprs.join(", ")),
        });
        Ok(())
    }

    /// Returns a new name.
    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    /// Adds a line that computes `expr` and returns its name.
    fn emit(&mut self, ty: ValueType, expr: String) -> Symbol {
        let name = self.new_name();
        self.lines.push(format!("let {name}: {} = {expr};", ty.wgsl()));
        Symbol::Name(ty, name)
    }

    /// Returns the type and the text of a value; a literal without a type gets `wanted`.
    fn typed(&self, value: &Symbol, wanted: ValueType) -> Result<(ValueType, String), Untranslatable> {
        Ok(match value {
            Symbol::Name(ty, name) | Symbol::Variable(ty, name) => (*ty, name.clone()),
            Symbol::F32(x) => (ValueType::F32, f32_literal(*x)),
            Symbol::F64(x) if wanted == ValueType::F32 => (ValueType::F32, f32_literal(*x as f32)),
            Symbol::F64(x) if wanted == ValueType::F64 => (ValueType::F64, u64_literal(x.to_bits())),
            Symbol::F64(x) if wanted == ValueType::TwoFloats => (wanted, two_floats_literal(*x)),
            Symbol::Integer(x) if matches!(wanted, ValueType::I64 | ValueType::U64) => (wanted, u64_literal(*x as u64)),
            Symbol::I32(x) => (ValueType::I32, format!("i32({x})")),
            Symbol::U32(x) => (ValueType::U32, format!("{x}u")),
            Symbol::Integer(x) if wanted == ValueType::I32 => (ValueType::I32, format!("i32({x})")),
            Symbol::Integer(x) if wanted == ValueType::U32 => (ValueType::U32, format!("{x}u")),
            other => return Err(format!("{other:?} as {wanted:?}")),
        })
    }

    /// Returns the text of a value of type `wanted`. `place` names the use of the value in the error.
    fn expr_of(&self, value: &Symbol, wanted: ValueType, place: &str) -> Result<String, Untranslatable> {
        let (ty, expr) = self.typed(value, wanted)?;
        if ty == wanted { Ok(expr) } else { Err(format!("{ty:?} in place of {wanted:?} in {place}")) }
    }

    /// Inlines a call to `function`, which has no control flow (`is_straight`).
    fn inline(
        &mut self,
        function: &ItemFn,
        arguments: Vec<Symbol>,
        generics: &[Symbol],
    ) -> Result<Symbol, Untranslatable> {
        self.enter(&function.sig.ident.to_string())?;
        let returns = self.returns.take();
        let mut scope = self.parameter_scope(function, arguments)?;
        let constants = function.sig.generics.const_params();
        for (constant, value) in constants.zip(generics) {
            scope.insert(constant.ident.to_string(), value.clone());
        }
        let result = self.block(&function.block, scope)?;
        self.returns = returns;
        self.active.pop();
        Ok(match &function.sig.output {
            syn::ReturnType::Type(_, ty) => with_declared_type(result, ty),
            syn::ReturnType::Default => result,
        })
    }
}

/// Returns the WGSL text of an `f32`. Values that WGSL has no literal for are created from bits at run time.
pub(crate) fn f32_literal(x: f32) -> String {
    if x.is_normal() || x == 0.0 && x.is_sign_positive() {
        format!("{x:e}f")
    } else {
        format!("bitcast<f32>({:#x}u ^ zero)", x.to_bits())
    }
}

/// Returns the literal of the sum of two `f32` that is nearest to `x`.
fn two_floats_literal(x: f64) -> String {
    let high = x as f32;
    let low = if high.is_finite() { (x - f64::from(high)) as f32 } else { 0.0 };
    // WGSL has no literals of subnormal numbers.
    let low = if low.is_normal() { low } else { 0.0 };
    format!("vec2<f32>({}, {})", f32_literal(high), f32_literal(low))
}

/// Converts a literal without a type to the type `ty`. Returns other values unchanged.
fn literal_as(value: Symbol, ty: ValueType) -> Symbol {
    match (value, ty) {
        (Symbol::F64(x), ValueType::F32) => Symbol::F32(x as f32),
        (Symbol::Integer(x), ValueType::U32) => Symbol::U32(x as u32),
        (Symbol::Integer(x), ValueType::I32) => Symbol::I32(x as i32),
        (value, _) => value,
    }
}

/// Converts a literal to the type `ty` of its declaration.
fn with_declared_type(value: Symbol, ty: &syn::Type) -> Symbol {
    match (value, ty) {
        (Symbol::List(values), syn::Type::Tuple(tuple)) => {
            Symbol::List(values.into_iter().zip(&tuple.elems).map(|(v, ty)| with_declared_type(v, ty)).collect())
        }
        (value, ty) => match ValueType::named(ty) {
            Some(ty) => literal_as(value, ty),
            None => value,
        },
    }
}

fn last_segment(path: &syn::Path) -> String {
    path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default()
}

fn literal_value(literal: &Lit) -> Result<Symbol, Untranslatable> {
    let error = |e: syn::Error| e.to_string();
    Ok(match literal {
        Lit::Float(x) if x.suffix() == "f32" => Symbol::F32(x.base10_parse().map_err(error)?),
        Lit::Float(x) => Symbol::F64(x.base10_parse().map_err(error)?),
        Lit::Int(x) if x.suffix() == "f64" => Symbol::F64(x.base10_parse().map_err(error)?),
        Lit::Int(x) if matches!(x.suffix(), "u32" | "usize") => Symbol::U32(x.base10_parse().map_err(error)?),
        Lit::Int(x) if x.suffix() == "i32" => Symbol::I32(x.base10_parse().map_err(error)?),
        Lit::Int(x) => Symbol::Integer(x.base10_parse().map_err(error)?),
        _ => return Err("a literal that is not a number".into()),
    })
}
