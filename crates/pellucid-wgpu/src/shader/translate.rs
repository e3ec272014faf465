//! Translation of scalar functions from Rust to WGSL.
//!
//! The functions of `pellucid_simd::math::single` and `double` are written in a small subset of Rust: constants, `let`, `if`
//! expressions without side effects, calls, arithmetic, comparisons and operations on bit patterns. The translator
//! executes a function on symbolic values: calls are inlined, constants are folded, and every other operation becomes
//! one line of WGSL. Operations on floats call functions of the library, which round exactly as the Rust text requires.
//! 64-bit integers and `f64` are pairs of words.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::LazyLock;
use syn::{Expr, Item, ItemFn, Lit, Pat, Stmt};

/// The type of a symbolic value.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ValueType {
    F32,
    I32,
    U32,
    Bool,
    F64,
    I64,
    U64,
}

impl ValueType {
    fn wgsl(self) -> &'static str {
        match self {
            ValueType::F32 => "f32",
            ValueType::I32 => "i32",
            ValueType::U32 => "u32",
            ValueType::Bool => "bool",
            ValueType::F64 | ValueType::I64 | ValueType::U64 => "vec2<u32>",
        }
    }
}

/// A value of which the translator knows the text or the bits.
#[derive(Clone, Debug)]
enum Symbol {
    /// The name of a WGSL value.
    Name(ValueType, String),
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

/// The reason why a function cannot be translated. It names the construct.
type Untranslatable = String;

/// The module of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum SourceModule {
    /// `pellucid_simd::math::single`, functions of `f32`.
    Single,
    /// `pellucid_simd::math::double`, functions of `f64`.
    Double,
}

impl SourceModule {
    /// Returns the type of the functions.
    fn float(self) -> ValueType {
        if self == SourceModule::Single { ValueType::F32 } else { ValueType::F64 }
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
    static SOURCES: RefCell<Option<Sources>> = const { RefCell::new(None) };
}

fn parse_sources() -> Sources {
    let mut sources = Sources { functions: HashMap::new(), constants: HashMap::new() };
    let single = pellucid_simd::math::single::SOURCES.map(|text| (SourceModule::Single, text));
    let double = pellucid_simd::math::double::SOURCES.map(|text| (SourceModule::Double, text));
    for (module, text) in single.into_iter().chain(double) {
        let items = syn::parse_file(text).map(|file| file.items).unwrap_or_default();
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

/// Returns the WGSL text of a function: `f_exp` is the function `exp` of `pellucid_simd::math::single`, and `d_exp` that
/// of `double`.
///
/// # Errors
/// Names the first construct that is not in the subset, for example a call of `libm`.
pub(crate) fn translated(name: &str) -> Result<String, Untranslatable> {
    type Cache = HashMap<String, Result<String, Untranslatable>>;
    static CACHE: LazyLock<std::sync::Mutex<Cache>> = LazyLock::new(Default::default);
    let mut cache = CACHE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = cache.get(name) {
        return known.clone();
    }
    let text = SOURCES.with(|cell| {
        let mut sources = cell.borrow_mut();
        let sources = sources.get_or_insert_with(parse_sources);
        let (module, rust_name) = match name.split_at_checked(2) {
            Some(("f_", rust_name)) => (SourceModule::Single, rust_name),
            Some(("d_", rust_name)) => (SourceModule::Double, rust_name),
            _ => return Err(format!("no function `{name}`")),
        };
        WgslTranslator { sources, lines: Vec::new(), depth: 0, module, names: 0 }.function_text(rust_name)
    });
    cache.insert(name.to_string(), text.clone());
    text
}

/// The names that are visible in a function body.
type Scope = HashMap<String, Symbol>;

/// The state of the translation of one function.
struct WgslTranslator<'a> {
    sources: &'a Sources,
    lines: Vec<String>,
    depth: usize,
    /// The module of the function that is executed.
    module: SourceModule,
    /// The number of names so far.
    names: usize,
}

impl WgslTranslator<'_> {
    fn function_text(mut self, name: &str) -> Result<String, Untranslatable> {
        let float = self.module.float();
        let prefix = if float == ValueType::F32 { "f" } else { "d" };
        let key = (self.module, name.to_string());
        let function = self.sources.functions.get(&key).ok_or_else(|| format!("no function `{name}`"))?;
        let mut parameters = Vec::new();
        let mut arguments = Vec::new();
        for input in &function.sig.inputs {
            let syn::FnArg::Typed(typed) = input else { return Err("a method".into()) };
            let Pat::Ident(ident) = &*typed.pat else { return Err("a pattern as a parameter".into()) };
            let argument = format!("{}_in", ident.ident);
            parameters.push(format!("{argument}: {}", float.wgsl()));
            arguments.push(Symbol::Name(float, argument));
        }
        let result = self.inline(function, arguments, &[])?;
        let (ty, value) = self.typed(&result, float)?;
        if ty != float {
            return Err("a result of another type".into());
        }
        let body: String = self.lines.iter().map(|line| format!("    {line}\n")).collect();
        let parameters = parameters.join(", ");
        Ok(format!("fn {prefix}_{name}({parameters}) -> {} {{\n{body}    return {value};\n}}\n", float.wgsl()))
    }

    /// Adds a line that computes `text` and returns its name.
    fn emit(&mut self, ty: ValueType, text: String) -> Symbol {
        self.names += 1;
        let name = format!("v{}", self.names);
        self.lines.push(format!("let {name}: {} = {text};", ty.wgsl()));
        Symbol::Name(ty, name)
    }

    /// Returns the type and the text of a value; a literal without a type gets `wanted`.
    fn typed(&self, value: &Symbol, wanted: ValueType) -> Result<(ValueType, String), Untranslatable> {
        Ok(match value {
            Symbol::Name(ty, name) => (*ty, name.clone()),
            Symbol::F32(x) => (ValueType::F32, float_text(*x)),
            Symbol::F64(x) if wanted == ValueType::F32 => (ValueType::F32, float_text(*x as f32)),
            Symbol::F64(x) if wanted == ValueType::F64 => (ValueType::F64, pair_text(x.to_bits())),
            Symbol::Integer(x) if matches!(wanted, ValueType::I64 | ValueType::U64) => (wanted, pair_text(*x as u64)),
            Symbol::I32(x) => (ValueType::I32, format!("i32({x})")),
            Symbol::U32(x) => (ValueType::U32, format!("{x}u")),
            Symbol::Integer(x) if wanted == ValueType::I32 => (ValueType::I32, format!("i32({x})")),
            Symbol::Integer(x) if wanted == ValueType::U32 => (ValueType::U32, format!("{x}u")),
            other => return Err(format!("{other:?} as {wanted:?}")),
        })
    }

    /// Inlines a call of `function`.
    fn inline(
        &mut self,
        function: &ItemFn,
        arguments: Vec<Symbol>,
        generics: &[Symbol],
    ) -> Result<Symbol, Untranslatable> {
        self.depth += 1;
        if self.depth > 32 {
            return Err("a recursive function".into());
        }
        let mut scope = Scope::new();
        let constants = function.sig.generics.const_params();
        for (constant, value) in constants.zip(generics) {
            scope.insert(constant.ident.to_string(), value.clone());
        }
        for (input, argument) in function.sig.inputs.iter().zip(arguments) {
            let syn::FnArg::Typed(typed) = input else { return Err("a method".into()) };
            let argument = with_declared_type(argument, &typed.ty);
            bind(&mut scope, &typed.pat, argument)?;
        }
        let result = self.block(&function.block, scope)?;
        self.depth -= 1;
        Ok(match &function.sig.output {
            syn::ReturnType::Type(_, ty) => with_declared_type(result, ty),
            syn::ReturnType::Default => result,
        })
    }

    fn block(&mut self, block: &syn::Block, mut scope: Scope) -> Result<Symbol, Untranslatable> {
        let mut last = None;
        for statement in &block.stmts {
            match statement {
                Stmt::Local(local) => {
                    let Some(init) = &local.init else { return Err("`let` without a value".into()) };
                    let value = self.expression(&init.expr, &scope)?;
                    bind(&mut scope, &local.pat, value)?;
                }
                Stmt::Item(Item::Const(constant)) => {
                    let value = self.expression(&constant.expr, &scope)?;
                    scope.insert(constant.ident.to_string(), with_declared_type(value, &constant.ty));
                }
                Stmt::Expr(expression, None) => last = Some(self.expression(expression, &scope)?),
                _ => return Err("a statement with a side effect".into()),
            }
        }
        last.ok_or_else(|| "a block without a value".into())
    }

    fn expression(&mut self, expression: &Expr, scope: &Scope) -> Result<Symbol, Untranslatable> {
        match expression {
            Expr::Paren(inner) => self.expression(&inner.expr, scope),
            Expr::Group(inner) => self.expression(&inner.expr, scope),
            Expr::Lit(literal) => literal_value(&literal.lit),
            Expr::Path(path) => self.path(&path.path, scope),
            Expr::Tuple(tuple) => {
                Ok(Symbol::List(tuple.elems.iter().map(|e| self.expression(e, scope)).collect::<Result<_, _>>()?))
            }
            Expr::Array(array) => {
                Ok(Symbol::List(array.elems.iter().map(|e| self.expression(e, scope)).collect::<Result<_, _>>()?))
            }
            Expr::Block(block) => self.block(&block.block, scope.clone()),
            Expr::Unary(unary) => {
                let value = self.expression(&unary.expr, scope)?;
                self.unary(&unary.op, value)
            }
            Expr::Binary(binary) => {
                let a = self.expression(&binary.left, scope)?;
                let b = self.expression(&binary.right, scope)?;
                self.binary(&binary.op, a, b)
            }
            Expr::Cast(cast) => {
                let value = self.expression(&cast.expr, scope)?;
                let syn::Type::Path(ty) = &*cast.ty else { return Err("a cast to an unusual type".into()) };
                self.cast(value, &last_segment(&ty.path))
            }
            Expr::If(branch) => {
                let condition = self.expression(&branch.cond, scope)?;
                let then = self.block(&branch.then_branch, scope.clone())?;
                let Some((_, otherwise)) = &branch.else_branch else { return Err("`if` without `else`".into()) };
                let otherwise = self.expression(otherwise, scope)?;
                self.select(&condition, then, otherwise)
            }
            Expr::Call(call) => {
                let arguments =
                    call.args.iter().map(|a| self.expression(a, scope)).collect::<Result<Vec<Symbol>, _>>()?;
                let Expr::Path(path) = &*call.func else { return Err("a call of an expression".into()) };
                self.call(&path.path, arguments, scope)
            }
            Expr::MethodCall(call) => {
                let receiver = self.expression(&call.receiver, scope)?;
                let arguments =
                    call.args.iter().map(|a| self.expression(a, scope)).collect::<Result<Vec<Symbol>, _>>()?;
                self.method(&call.method.to_string(), receiver, arguments)
            }
            _ => Err("an expression outside the subset".into()),
        }
    }

    fn path(&mut self, path: &syn::Path, scope: &Scope) -> Result<Symbol, Untranslatable> {
        let name = last_segment(path);
        let qualifier = path.segments.iter().rev().nth(1).map(|s| s.ident.to_string());
        let has = |segment: &str| path.segments.iter().any(|s| s.ident == segment);
        let of_f64 = has("f64") || self.module == SourceModule::Double && !has("f32");
        if qualifier.is_none()
            && let Some(value) = scope.get(&name)
        {
            return Ok(value.clone());
        }
        if let Some(constant) = self.sources.constants.get(&(self.module, name.clone())) {
            let value = self.expression(&constant.expr, &Scope::new())?;
            return Ok(with_declared_type(value, &constant.ty));
        }
        use std::f64::consts as wide;
        let value = match &*name {
            "LOG2_E" => wide::LOG2_E,
            "LOG10_E" => wide::LOG10_E,
            "LOG10_2" => wide::LOG10_2,
            "FRAC_1_PI" => wide::FRAC_1_PI,
            "FRAC_2_PI" => wide::FRAC_2_PI,
            "FRAC_PI_2" => wide::FRAC_PI_2,
            "FRAC_PI_4" => wide::FRAC_PI_4,
            "FRAC_1_SQRT_2" => wide::FRAC_1_SQRT_2,
            "PI" => wide::PI,
            "MAX" if !of_f64 => f64::from(f32::MAX),
            "MIN_POSITIVE" if !of_f64 => f64::from(f32::MIN_POSITIVE),
            "MAX" => f64::MAX,
            "MIN_POSITIVE" => f64::MIN_POSITIVE,
            "INFINITY" => f64::INFINITY,
            "NEG_INFINITY" => f64::NEG_INFINITY,
            "NAN" => f64::NAN,
            _ => return Err(format!("the name `{name}`")),
        };
        Ok(if of_f64 { Symbol::F64(value) } else { Symbol::F32(value as f32) })
    }

    fn call(&mut self, path: &syn::Path, arguments: Vec<Symbol>, scope: &Scope) -> Result<Symbol, Untranslatable> {
        let name = last_segment(path);
        let qualifier = path.segments.iter().rev().nth(1).map(|s| s.ident.to_string());
        match (qualifier.as_deref(), &*name) {
            (Some("S"), "of") => return first(arguments).map(as_f32),
            (Some("f32"), "from_bits") => return self.float_from_bits(first(arguments)?),
            (None, "polynomial") => return self.polynomial(&arguments),
            (Some("f64"), "from_bits") => {
                let (_, bits) = self.typed(&first(arguments)?, ValueType::U64)?;
                return Ok(Symbol::Name(ValueType::F64, bits));
            }
            (Some("libm"), _) => return Err(format!("the function `{name}` of libm")),
            _ => {}
        }
        let module = if qualifier.as_deref() == Some("double") { SourceModule::Double } else { self.module };
        let function = self.sources.functions.get(&(module, name.clone()));
        let function = function.ok_or_else(|| format!("the function `{name}`"))?.clone();
        let mut generics = Vec::new();
        if let Some(syn::PathArguments::AngleBracketed(list)) = path.segments.last().map(|s| &s.arguments) {
            for argument in &list.args {
                if let syn::GenericArgument::Const(value) = argument {
                    generics.push(as_u32(self.expression(value, scope)?));
                }
            }
        }
        let caller = std::mem::replace(&mut self.module, module);
        let result = self.inline(&function, arguments, &generics);
        self.module = caller;
        result
    }

    /// Evaluates c₀ + x·(c₁ + …) with one fused multiply-add for each coefficient but the last.
    fn polynomial(&mut self, arguments: &[Symbol]) -> Result<Symbol, Untranslatable> {
        let [x, Symbol::List(coefficients)] = arguments else { return Err("a polynomial without an array".into()) };
        let (last, rest) = coefficients.split_last().ok_or("a polynomial without coefficients")?;
        if self.module == SourceModule::Double {
            // A loop: the text of a multiply-add in double precision is long after inlining.
            let (_, x) = self.typed(x, ValueType::F64)?;
            let texts = coefficients.iter().map(|c| self.typed(c, ValueType::F64).map(|(_, text)| text));
            let texts = texts.collect::<Result<Vec<String>, _>>()?;
            self.names += 1;
            let (k, n) = (self.names, texts.len());
            self.lines.push(format!("var c{k} = array<vec2<u32>, {n}>({});", texts.join(", ")));
            self.lines.push(format!("var v{k} = c{k}[{}];", n - 1));
            self.lines.push(format!("for (var i{k} = {n}u - 1u; i{k} > 0u; i{k} = i{k} - 1u) {{"));
            self.lines.push(format!("    v{k} = d_fma(v{k}, {x}, c{k}[i{k} - 1u]);"));
            self.lines.push("}".into());
            return Ok(Symbol::Name(ValueType::F64, format!("v{k}")));
        }
        let mut y = as_f32(last.clone());
        for c in rest.iter().rev() {
            y = self.method("mul_add", y, vec![x.clone(), c.clone()])?;
        }
        Ok(y)
    }

    fn float_from_bits(&mut self, value: Symbol) -> Result<Symbol, Untranslatable> {
        match as_u32(value) {
            Symbol::U32(bits) => Ok(Symbol::F32(f32::from_bits(bits))),
            other => {
                let (_, text) = self.typed(&other, ValueType::U32)?;
                Ok(self.emit(ValueType::F32, format!("bitcast<f32>({text})")))
            }
        }
    }

    fn method(&mut self, name: &str, receiver: Symbol, arguments: Vec<Symbol>) -> Result<Symbol, Untranslatable> {
        if let ("to_bits", Symbol::F32(x)) = (name, &receiver) {
            return Ok(Symbol::U32(x.to_bits()));
        }
        if let ("to_bits", Symbol::F64(x)) = (name, &receiver) {
            return Ok(Symbol::Integer(i128::from(x.to_bits())));
        }
        let is_double = |s: &Symbol| matches!(s, Symbol::Name(ValueType::F64, _));
        if is_double(&receiver) || arguments.iter().any(is_double) {
            return self.double_method(name, &receiver, &arguments);
        }
        if let Some(op) = match name {
            "wrapping_add" => Some("+"),
            "wrapping_sub" => Some("-"),
            _ => None,
        } {
            return self.integer_operation(op, receiver, first(arguments)?);
        }
        let (ty, x) = self.typed(&receiver, ValueType::F32)?;
        if ty != ValueType::F32 {
            return Err(format!("the method `{name}` of an integer"));
        }
        let mut texts = vec![x];
        for argument in &arguments {
            let (ty, text) = self.typed(argument, ValueType::F32)?;
            if ty != ValueType::F32 {
                return Err(format!("an integer argument of `{name}`"));
            }
            texts.push(text);
        }
        let (ty, text) = match (name, &texts[..]) {
            ("mul_add", [a, b, c]) => (ValueType::F32, format!("f_fma({a}, {b}, {c})")),
            ("abs" | "sqrt" | "trunc" | "floor", [a]) => (ValueType::F32, format!("f_{name}({a})")),
            ("copysign", [a, s]) => (ValueType::F32, format!("f_copysign({a}, {s})")),
            ("at_most", [a, c]) => (ValueType::F32, format!("select({a}, {c}, f_lt({c}, {a}))")),
            ("low_bits_as_exponent", [a]) => (ValueType::F32, format!("bitcast<f32>(bitcast<u32>({a}) << 23u)")),
            ("add_bits", [a, b]) => (ValueType::F32, format!("bitcast<f32>(bitcast<u32>({a}) + bitcast<u32>({b}))")),
            ("to_bits", [a]) => (ValueType::U32, format!("bitcast<u32>({a})")),
            ("is_nan", [a]) => (ValueType::Bool, format!("f_is_nan({a})")),
            ("is_sign_negative", [a]) => (ValueType::Bool, format!("(bitcast<u32>({a}) >= 0x80000000u)")),
            _ => return Err(format!("the method `{name}`")),
        };
        Ok(self.emit(ty, text))
    }

    /// Returns the result of a method of `f64`.
    fn double_method(&mut self, name: &str, receiver: &Symbol, arguments: &[Symbol]) -> Result<Symbol, Untranslatable> {
        let mut texts = Vec::new();
        for operand in [receiver].into_iter().chain(arguments) {
            let (ty, text) = self.typed(operand, ValueType::F64)?;
            if ty != ValueType::F64 {
                return Err(format!("an operand of `{name}`"));
            }
            texts.push(text);
        }
        let (ty, text) = match (name, &texts[..]) {
            ("mul_add", [a, b, c]) => (ValueType::F64, format!("d_fma({a}, {b}, {c})")),
            ("abs" | "sqrt" | "trunc" | "floor", [a]) => (ValueType::F64, format!("d_{name}({a})")),
            ("copysign", [a, s]) => (ValueType::F64, format!("d_copysign({a}, {s})")),
            ("to_bits", [a]) => return Ok(Symbol::Name(ValueType::U64, a.clone())),
            ("is_nan", [a]) => (ValueType::Bool, format!("d_is_nan({a})")),
            _ => return Err(format!("the method `{name}` of f64")),
        };
        Ok(self.emit(ty, text))
    }

    fn cast(&mut self, value: Symbol, to: &str) -> Result<Symbol, Untranslatable> {
        Ok(match (value, to) {
            (Symbol::Name(ValueType::I32, x), "f32") => self.emit(ValueType::F32, format!("f32({x})")),
            (Symbol::Name(ValueType::U32, x), "i32") => self.emit(ValueType::I32, format!("bitcast<i32>({x})")),
            (Symbol::Name(ValueType::I32, x), "u32") => self.emit(ValueType::U32, format!("bitcast<u32>({x})")),
            (Symbol::Name(ValueType::F32, x), "f64") => self.emit(ValueType::F64, format!("d_from_f32({x})")),
            (Symbol::Name(ValueType::F64, x), "f32") => self.emit(ValueType::F32, format!("d_to_f32({x})")),
            (Symbol::Name(ValueType::I64 | ValueType::U64, x), "i64") => Symbol::Name(ValueType::I64, x),
            (Symbol::Name(ValueType::I64 | ValueType::U64, x), "u64") => Symbol::Name(ValueType::U64, x),
            (Symbol::Integer(x), "i64" | "u64") => Symbol::Integer(x),
            (Symbol::F32(x), "f64") => Symbol::F64(f64::from(x)),
            (Symbol::F64(x), "f32") => Symbol::F32(x as f32),
            (Symbol::U32(x), "f32") => Symbol::F32(x as f32),
            (Symbol::U32(x), "i32") => Symbol::I32(x as i32),
            (Symbol::I32(x), "u32") => Symbol::U32(x as u32),
            (_, to) => return Err(format!("a cast to `{to}`")),
        })
    }

    fn unary(&mut self, op: &syn::UnOp, value: Symbol) -> Result<Symbol, Untranslatable> {
        Ok(match (op, value) {
            (syn::UnOp::Neg(_), Symbol::F32(x)) => Symbol::F32(-x),
            (syn::UnOp::Neg(_), Symbol::F64(x)) => Symbol::F64(-x),
            (syn::UnOp::Neg(_), Symbol::Integer(x)) => Symbol::Integer(-x),
            (syn::UnOp::Neg(_), Symbol::I32(x)) => Symbol::I32(x.wrapping_neg()),
            (syn::UnOp::Neg(_), Symbol::Name(ValueType::F32, x)) => self.emit(ValueType::F32, format!("f_neg({x})")),
            (syn::UnOp::Neg(_), Symbol::Name(ValueType::F64, x)) => self.emit(ValueType::F64, format!("d_neg({x})")),
            (syn::UnOp::Neg(_), Symbol::Name(ValueType::I64, x)) => self.emit(ValueType::I64, format!("l_neg({x})")),
            (syn::UnOp::Neg(_), Symbol::Name(ValueType::I32, x)) => self.emit(ValueType::I32, format!("0 - {x}")),
            (syn::UnOp::Not(_), Symbol::Name(ValueType::Bool, x)) => self.emit(ValueType::Bool, format!("!{x}")),
            (_, value) => return Err(format!("a sign or negation of {value:?}")),
        })
    }

    fn binary(&mut self, op: &syn::BinOp, a: Symbol, b: Symbol) -> Result<Symbol, Untranslatable> {
        use syn::BinOp;
        if let (Symbol::F64(x), Symbol::F64(y)) = (&a, &b) {
            return folded(op, *x, *y).map(Symbol::F64);
        }
        let is_double = |s: &Symbol| matches!(s, Symbol::Name(ValueType::F64, _));
        if is_double(&a) || is_double(&b) {
            let (x, y) = (self.typed(&a, ValueType::F64)?.1, self.typed(&b, ValueType::F64)?.1);
            return self.float_operation(op, ValueType::F64, "d", (&x, &y));
        }
        let is_float = |s: &Symbol| matches!(s, Symbol::F32(_) | Symbol::F64(_) | Symbol::Name(ValueType::F32, _));
        let (a, b) = if is_float(&a) || is_float(&b) { (as_f32(a), as_f32(b)) } else { (a, b) };
        if let (Symbol::F32(x), Symbol::F32(y)) = (&a, &b) {
            // The sum, product and quotient of two f32 in f64 round to f32 as if rounded once (Figueroa 1995).
            return folded(op, f64::from(*x), f64::from(*y)).map(|z| Symbol::F32(z as f32));
        }
        if is_float(&a) {
            let (_, x) = self.typed(&a, ValueType::F32)?;
            let (_, y) = self.typed(&b, ValueType::F32)?;
            return self.float_operation(op, ValueType::F32, "f", (&x, &y));
        }
        let text = match op {
            BinOp::And(_) => "&&",
            BinOp::Or(_) => "||",
            BinOp::Add(_) => "+",
            BinOp::Sub(_) => "-",
            BinOp::BitAnd(_) => "&",
            BinOp::BitOr(_) => "|",
            BinOp::BitXor(_) => "^",
            BinOp::Shl(_) => "<<",
            BinOp::Shr(_) => ">>",
            BinOp::Eq(_) => "==",
            BinOp::Ne(_) => "!=",
            BinOp::Lt(_) => "<",
            BinOp::Gt(_) => ">",
            _ => return Err("an integer operator outside the subset".into()),
        };
        self.integer_operation(text, a, b)
    }

    /// Returns the result of an operator on two floats of type `float`, whose functions have this prefix.
    fn float_operation(
        &mut self,
        op: &syn::BinOp,
        float: ValueType,
        prefix: &str,
        (x, y): (&str, &str),
    ) -> Result<Symbol, Untranslatable> {
        use syn::BinOp;
        let (ty, text) = match op {
            BinOp::Add(_) => (float, format!("{prefix}_add({x}, {y})")),
            BinOp::Sub(_) => (float, format!("{prefix}_sub({x}, {y})")),
            BinOp::Mul(_) => (float, format!("{prefix}_mul({x}, {y})")),
            BinOp::Div(_) => (float, format!("{prefix}_div({x}, {y})")),
            BinOp::Lt(_) => (ValueType::Bool, format!("{prefix}_lt({x}, {y})")),
            BinOp::Le(_) => (ValueType::Bool, format!("{prefix}_le({x}, {y})")),
            BinOp::Gt(_) => (ValueType::Bool, format!("{prefix}_lt({y}, {x})")),
            BinOp::Ge(_) => (ValueType::Bool, format!("{prefix}_le({y}, {x})")),
            BinOp::Eq(_) => (ValueType::Bool, format!("{prefix}_eq({x}, {y})")),
            BinOp::Ne(_) => (ValueType::Bool, format!("!{prefix}_eq({x}, {y})")),
            _ => return Err("a float operator outside the subset".into()),
        };
        Ok(self.emit(ty, text))
    }

    fn integer_operation(&mut self, op: &str, a: Symbol, b: Symbol) -> Result<Symbol, Untranslatable> {
        if matches!(op, "<<" | ">>") {
            let (ty, x) = self.typed(&a, ValueType::U32)?;
            let (_, n) = self.typed(&as_u32(b), ValueType::U32)?;
            match (ty, op) {
                (ValueType::I64 | ValueType::U64, "<<") => {
                    return Ok(self.emit(ty, format!("l_shift_left({x}, {n})")));
                }
                (ValueType::I64, _) => return Ok(self.emit(ty, format!("l_shr({x}, vec2<u32>({n}, 0u))"))),
                (ValueType::U64, _) => return Err("a shift of u64 to the right".into()),
                _ => {}
            }
            return Ok(self.emit(ty, format!("{x} {op} {n}")));
        }
        let wanted = match (&a, &b) {
            (Symbol::Name(ty, _), _) | (_, Symbol::Name(ty, _)) => *ty,
            (Symbol::I32(_), _) | (_, Symbol::I32(_)) => ValueType::I32,
            _ => ValueType::U32,
        };
        let (ty, x) = self.typed(&a, wanted)?;
        let (_, y) = self.typed(&b, wanted)?;
        let is_boolean = matches!(op, "==" | "!=" | "<" | ">" | "&&" | "||");
        if matches!(ty, ValueType::I64 | ValueType::U64) {
            let text = match op {
                "+" => format!("l_add({x}, {y})"),
                "-" => format!("l_sub({x}, {y})"),
                "==" => format!("l_eq({x}, {y})"),
                "!=" => format!("!l_eq({x}, {y})"),
                "<" if ty == ValueType::I64 => format!("l_lt({x}, {y})"),
                ">" if ty == ValueType::I64 => format!("l_lt({y}, {x})"),
                "&" | "|" | "^" => format!("{x} {op} {y}"),
                _ => return Err(format!("the operator {op} of a 64-bit integer")),
            };
            return Ok(self.emit(if is_boolean { ValueType::Bool } else { ty }, text));
        }
        Ok(self.emit(if is_boolean { ValueType::Bool } else { ty }, format!("{x} {op} {y}")))
    }

    fn select(&mut self, condition: &Symbol, then: Symbol, otherwise: Symbol) -> Result<Symbol, Untranslatable> {
        let (_, condition) = self.typed(condition, ValueType::Bool)?;
        let known_type = |s: &Symbol| match s {
            Symbol::Name(ty, _) => Some(*ty),
            Symbol::F32(_) => Some(ValueType::F32),
            Symbol::I32(_) => Some(ValueType::I32),
            Symbol::U32(_) => Some(ValueType::U32),
            _ => None,
        };
        let literal_type = match &then {
            Symbol::F64(_) => self.module.float(),
            _ => self.module.integer(),
        };
        let wanted = known_type(&then).or_else(|| known_type(&otherwise)).unwrap_or(literal_type);
        let (ty, a) = self.typed(&then, wanted)?;
        let (other, b) = self.typed(&otherwise, wanted)?;
        if ty != other {
            return Err("branches of different types".into());
        }
        Ok(self.emit(ty, format!("select({b}, {a}, {condition})")))
    }
}

/// Computes a float operation on known operands.
fn folded(op: &syn::BinOp, x: f64, y: f64) -> Result<f64, Untranslatable> {
    Ok(match op {
        syn::BinOp::Add(_) => x + y,
        syn::BinOp::Sub(_) => x - y,
        syn::BinOp::Mul(_) => x * y,
        syn::BinOp::Div(_) => x / y,
        _ => return Err("a comparison of constants".into()),
    })
}

/// Returns the WGSL text of an `f32`. Values that WGSL has no literal for are made from bits at run time.
pub(crate) fn float_text(x: f32) -> String {
    if x.is_normal() || x == 0.0 && x.is_sign_positive() {
        format!("{x:e}f")
    } else {
        format!("bitcast<f32>({:#x}u ^ zero)", x.to_bits())
    }
}

/// Returns the text of 64 bits as a pair of words.
fn pair_text(bits: u64) -> String {
    format!("vec2<u32>({:#x}u, {:#x}u)", bits as u32, bits >> 32)
}

fn first(arguments: Vec<Symbol>) -> Result<Symbol, Untranslatable> {
    arguments.into_iter().next().ok_or_else(|| "a missing argument".into())
}

fn as_f32(value: Symbol) -> Symbol {
    match value {
        Symbol::F64(x) => Symbol::F32(x as f32),
        other => other,
    }
}

fn as_u32(value: Symbol) -> Symbol {
    match value {
        Symbol::Integer(x) => Symbol::U32(x as u32),
        other => other,
    }
}

/// Gives a literal the type `ty` of its declaration.
fn with_declared_type(value: Symbol, ty: &syn::Type) -> Symbol {
    match (value, ty) {
        (value, syn::Type::Path(path)) => match (value, &*last_segment(&path.path)) {
            (Symbol::F64(x), "f32" | "S") => Symbol::F32(x as f32),
            (Symbol::Integer(x), "u32") => Symbol::U32(x as u32),
            (Symbol::Integer(x), "i32") => Symbol::I32(x as i32),
            (value, _) => value,
        },
        (Symbol::List(values), syn::Type::Tuple(tuple)) => {
            Symbol::List(values.into_iter().zip(&tuple.elems).map(|(v, ty)| with_declared_type(v, ty)).collect())
        }
        (value, _) => value,
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
        Lit::Int(x) if x.suffix() == "u32" => Symbol::U32(x.base10_parse().map_err(error)?),
        Lit::Int(x) if x.suffix() == "i32" => Symbol::I32(x.base10_parse().map_err(error)?),
        Lit::Int(x) => Symbol::Integer(x.base10_parse().map_err(error)?),
        _ => return Err("a literal that is not a number".into()),
    })
}

fn bind(scope: &mut Scope, pattern: &Pat, value: Symbol) -> Result<(), Untranslatable> {
    match (pattern, value) {
        (Pat::Ident(ident), value) => drop(scope.insert(ident.ident.to_string(), value)),
        (Pat::Wild(_), _) => {}
        (Pat::Type(typed), value) => bind(scope, &typed.pat, with_declared_type(value, &typed.ty))?,
        (Pat::Tuple(tuple), Symbol::List(values)) if tuple.elems.len() == values.len() => {
            for (pattern, value) in tuple.elems.iter().zip(values) {
                bind(scope, pattern, value)?;
            }
        }
        _ => return Err("a pattern outside the subset".into()),
    }
    Ok(())
}
