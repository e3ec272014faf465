//! Names, calls, methods, casts and operators.

use super::{
    FunctionTypes, Scope, SourceModule, Symbol, Untranslatable, ValueType, WgslTranslator, f32_literal, last_segment,
    literal_as, statements, with_declared_type,
};
use crate::shader::LIBRARY;
use crate::shader::types::i64_from_word;
use syn::ItemFn;

impl WgslTranslator<'_> {
    pub(super) fn path(&mut self, path: &syn::Path, scope: &Scope) -> Result<Symbol, Untranslatable> {
        let name = last_segment(path);
        let qualifier = path.segments.iter().rev().nth(1).map(|s| s.ident.to_string());
        let has = |segment: &str| path.segments.iter().any(|s| s.ident == segment);
        let is_double = has("f64") || self.module != SourceModule::Single && !has("f32");
        if qualifier.is_none()
            && let Some(value) = scope.get(&name)
        {
            return Ok(match value {
                Symbol::Variable(ty, variable) => self.emit(*ty, variable.clone()),
                value => value.clone(),
            });
        }
        if let Some(constant) = self.sources.constants.get(&(self.module.source_module(), name.clone())) {
            let value = self.expression(&constant.expr, &Scope::new())?;
            return Ok(with_declared_type(value, &constant.ty));
        }
        use std::f64::consts as wide;
        let value = match &*name {
            "LN_2" => wide::LN_2,
            "LOG2_E" => wide::LOG2_E,
            "LOG10_E" => wide::LOG10_E,
            "LOG10_2" => wide::LOG10_2,
            "FRAC_1_PI" => wide::FRAC_1_PI,
            "FRAC_2_PI" => wide::FRAC_2_PI,
            "FRAC_PI_2" => wide::FRAC_PI_2,
            "FRAC_PI_4" => wide::FRAC_PI_4,
            "FRAC_1_SQRT_2" => wide::FRAC_1_SQRT_2,
            "SQRT_2" => wide::SQRT_2,
            "PI" => wide::PI,
            // The bound on the relative error of an operation, with a safety margin.
            "EPSILON" if self.module == SourceModule::TwoFloats => 2f64.powi(-44),
            "EPSILON" if is_double => f64::EPSILON,
            "MAX" if !is_double => f64::from(f32::MAX),
            "MIN_POSITIVE" if !is_double => f64::from(f32::MIN_POSITIVE),
            "MAX" => f64::MAX,
            "MIN_POSITIVE" => f64::MIN_POSITIVE,
            "INFINITY" => f64::INFINITY,
            "NEG_INFINITY" => f64::NEG_INFINITY,
            "NAN" => f64::NAN,
            _ => return Err(format!("the name `{name}`")),
        };
        Ok(if is_double { Symbol::F64(value) } else { Symbol::F32(value as f32) })
    }

    pub(super) fn call(
        &mut self,
        path: &syn::Path,
        arguments: Vec<Symbol>,
        scope: &Scope,
    ) -> Result<Symbol, Untranslatable> {
        let mut name = last_segment(path);
        let mut qualifier = path.segments.iter().rev().nth(1).map(|s| s.ident.to_string());
        if self.module == SourceModule::TwoFloats
            && qualifier.as_deref() == Some("libm")
            && let Some((_, rust_name)) =
                [("exp", "exp"), ("log", "ln")].into_iter().find(|(libm_name, _)| *libm_name == name)
        {
            (name, qualifier) = (rust_name.into(), None);
        }
        match (qualifier.as_deref(), &*name) {
            (Some("S"), "splat") => return first(arguments).map(|x| literal_as(x, ValueType::F32)),
            (Some("f32"), "from_bits") => return self.float_from_bits(first(arguments)?),
            (None, "polynomial") => return self.polynomial(&arguments, true),
            (None, "horner") => return self.polynomial(&arguments, false),
            (Some("f64"), "from_bits") if self.module != SourceModule::TwoFloats => {
                let (_, bits) = self.typed(&first(arguments)?, ValueType::U64)?;
                return Ok(Symbol::Name(ValueType::F64, bits));
            }
            (Some("libm"), "fmod") => {
                let wide = self.module.wide();
                return self.float_method("fmod", wide, &first(arguments.clone())?, &arguments[1..]);
            }
            (Some("libm"), _) => return Err(format!("the function `{name}` of libm")),
            _ => {}
        }
        let has_wide_source = qualifier.as_deref() == Some("double") && self.module == SourceModule::Single;
        let module = if has_wide_source { SourceModule::Double } else { self.module };
        let caller = std::mem::replace(&mut self.module, module);
        let function = self.function(&name)?;
        let result = if !self.has_own_function(&name) && statements::is_straight(&function.block) {
            let mut generics = Vec::new();
            if let Some(syn::PathArguments::AngleBracketed(list)) = path.segments.last().map(|s| &s.arguments) {
                for argument in &list.args {
                    if let syn::GenericArgument::Const(value) = argument {
                        generics.push(literal_as(self.expression(value, scope)?, ValueType::U32));
                    }
                }
            }
            self.inline(function, arguments, &generics)
        } else {
            self.call_of(function, &arguments)
        };
        self.module = caller;
        result
    }

    /// Returns true if the library has a function for sums of two `f32` that replaces the translated function of `f64`,
    /// because the latter uses the bit pattern of a number.
    fn has_own_function(&self, name: &str) -> bool {
        self.module == SourceModule::TwoFloats && LIBRARY.contains_key(&*format!("t_{name}"))
    }

    /// Calls a function that is translated with its control flow, or a function of the library.
    fn call_of(&mut self, function: &ItemFn, arguments: &[Symbol]) -> Result<Symbol, Untranslatable> {
        let name = function.sig.ident.to_string();
        let types = FunctionTypes::from_function(function, self.module)?;
        if !self.has_own_function(&name) {
            // The text of the translated function is not used here, but the call is an error if it cannot be
            // translated.
            let mut callee = WgslTranslator::new(self.sources, self.module);
            callee.active = self.active.clone();
            callee.function_source(&name)?;
        }
        let exprs = arguments.iter().zip(&types.parameters).map(|(argument, &ty)| self.expr_of(argument, ty, &name));
        let exprs = exprs.collect::<Result<Vec<String>, _>>()?;
        let call = format!("{}_{name}({})", self.module.prefix(), exprs.join(", "));
        if let [single] = types.result[..] {
            return Ok(self.emit(single, call));
        }
        let pair = self.new_name();
        self.lines.push(format!("let {pair} = {call};"));
        let wide = self.module.wide();
        Ok(Symbol::List(["xy", "zw"].map(|half| Symbol::Name(wide, format!("{pair}.{half}"))).into()))
    }

    /// Evaluates c₀ + x·(c₁ + …) by Horner's rule, with or without fused multiply-adds.
    fn polynomial(&mut self, arguments: &[Symbol], fused: bool) -> Result<Symbol, Untranslatable> {
        let [x, Symbol::List(coefficients)] = arguments else { return Err("a polynomial without an array".into()) };
        let (last, rest) = coefficients.split_last().ok_or("a polynomial without coefficients")?;
        if self.module != SourceModule::Single {
            // This is a loop, because the code of a multiply-add in double precision is long after inlining.
            let (wide, p) = (self.module.wide(), self.module.prefix());
            let (_, x) = self.typed(x, wide)?;
            let c = self.array(coefficients)?;
            self.names += 1;
            let (k, n) = (self.names, coefficients.len());
            let step = match fused {
                true => format!("{p}_fma(v{k}, {x}, {c}[i{k} - 1u])"),
                false => format!("{p}_add({p}_mul(v{k}, {x}), {c}[i{k} - 1u])"),
            };
            self.lines.push(format!("var v{k} = {c}[{}];", n - 1));
            // Drivers unroll loops of known length. With sums of two `f32`, the length is therefore hidden from the
            // compiler.
            let end = if wide == ValueType::TwoFloats { "zero" } else { "0u" };
            self.lines.push(format!("for (var i{k} = {n}u - 1u; i{k} > {end}; i{k} = i{k} - 1u) {{"));
            self.lines.push(format!("    v{k} = {step};"));
            self.lines.push("}".into());
            return Ok(Symbol::Name(wide, format!("v{k}")));
        }
        let mut y = literal_as(last.clone(), ValueType::F32);
        for c in rest.iter().rev() {
            y = self.method("mul_add", y, vec![x.clone(), c.clone()])?;
        }
        Ok(y)
    }

    /// Returns the name of a variable that holds an array of `f64`. Equal arrays of a function share a variable.
    fn array(&mut self, values: &[Symbol]) -> Result<String, Untranslatable> {
        let wide = self.module.wide();
        let exprs = values.iter().map(|value| self.typed(value, wide).map(|(_, expr)| expr));
        let exprs = exprs.collect::<Result<Vec<String>, _>>()?;
        let value = format!("array<{}, {}>({});", wide.wgsl(), exprs.len(), exprs.join(", "));
        let existing = self.arrays.iter().position(|line| line.ends_with(&value));
        let k = existing.unwrap_or(self.arrays.len());
        if existing.is_none() {
            self.arrays.push(format!("var c{k} = {value}"));
        }
        Ok(format!("c{k}"))
    }

    /// Returns the row at a variable index of an array whose rows have an even number of elements.
    ///
    /// The text is a `switch`. Some drivers translate every access to an array to one branch per element, which takes
    /// time quadratic in its length.
    fn row(&mut self, rows: &[Symbol], index: &str) -> Result<Symbol, Untranslatable> {
        let wide = self.module.wide();
        let vector = if wide == ValueType::TwoFloats { "vec4<f32>" } else { "vec4<u32>" };
        let (mut row, mut names) = (Vec::new(), Vec::new());
        let Some(Symbol::List(first)) = rows.first() else { return Err("a row that is not an array".into()) };
        for _ in 0..first.len() / 2 {
            let name = self.new_name();
            self.lines.push(format!("var {name}: {vector};"));
            row.extend(["xy", "zw"].map(|half| Symbol::Name(wide, format!("{name}.{half}"))));
            names.push(name);
        }
        self.lines.push(format!("switch {index} {{"));
        for (k, values) in rows.iter().enumerate() {
            let Symbol::List(values) = values else { return Err("a row that is not an array".into()) };
            let mut assignments = String::new();
            for (name, pair) in names.iter().zip(values.chunks_exact(2)) {
                let (x, y) = (self.typed(&pair[0], wide)?.1, self.typed(&pair[1], wide)?.1);
                assignments.push_str(&format!("{name} = {vector}({x}, {y}); "));
            }
            let label = if k + 1 == rows.len() { String::from("default") } else { format!("case {k}u") };
            self.lines.push(format!("{label}: {{ {assignments}}}"));
        }
        self.lines.push("}".into());
        Ok(Symbol::List(row))
    }

    /// Returns an element of an `f64` array, or a row of an array whose rows have an even number of elements.
    pub(super) fn element(&mut self, array: &Symbol, index: Symbol) -> Result<Symbol, Untranslatable> {
        let Symbol::List(values) = array else { return Err("an index of a value that is not an array".into()) };
        if let Symbol::Integer(index) = index {
            return values.get(index as usize).cloned().ok_or_else(|| "an index out of bounds".into());
        }
        let index = self.expr_of(&literal_as(index, ValueType::U32), ValueType::U32, "an index")?;
        let wide = self.module.wide();
        if let Some(Symbol::List(_)) = values.first() {
            return self.row(values, &index);
        }
        let name = self.array(values)?;
        Ok(self.emit(wide, format!("{name}[{index}]")))
    }

    fn float_from_bits(&mut self, value: Symbol) -> Result<Symbol, Untranslatable> {
        match literal_as(value, ValueType::U32) {
            Symbol::U32(bits) => Ok(Symbol::F32(f32::from_bits(bits))),
            other => {
                let (_, expr) = self.typed(&other, ValueType::U32)?;
                Ok(self.emit(ValueType::F32, format!("bitcast<f32>({expr})")))
            }
        }
    }

    pub(super) fn method(
        &mut self,
        name: &str,
        receiver: Symbol,
        arguments: Vec<Symbol>,
    ) -> Result<Symbol, Untranslatable> {
        if let ("to_bits", Symbol::F32(x)) = (name, &receiver) {
            return Ok(Symbol::U32(x.to_bits()));
        }
        if let ("to_bits", Symbol::F64(x)) = (name, &receiver) {
            return Ok(Symbol::Integer(i128::from(x.to_bits())));
        }
        if let ("len", Symbol::List(values)) = (name, &receiver) {
            return Ok(Symbol::U32(values.len() as u32));
        }
        let is_double = |s: &Symbol| matches!(s, Symbol::Name(ty, _) if ty.is_wide());
        if is_double(&receiver) || arguments.iter().any(is_double) {
            return self.float_method(name, self.module.wide(), &receiver, &arguments);
        }
        match name {
            "wrapping_add" => self.integer_operation("+", receiver, first(arguments)?),
            "wrapping_sub" => self.integer_operation("-", receiver, first(arguments)?),
            _ => self.float_method(name, ValueType::F32, &receiver, &arguments),
        }
    }

    /// Returns the result of a method of the type `float`.
    fn float_method(
        &mut self,
        name: &str,
        float: ValueType,
        receiver: &Symbol,
        arguments: &[Symbol],
    ) -> Result<Symbol, Untranslatable> {
        let operands = [receiver].into_iter().chain(arguments);
        let exprs = operands.map(|operand| self.expr_of(operand, float, name)).collect::<Result<Vec<String>, _>>()?;
        let p = float.prefix();
        let (ty, expr) = match (name, &exprs[..], float) {
            ("mul_add", [a, b, c], _) => (float, format!("{p}_fma({a}, {b}, {c})")),
            ("abs" | "sqrt" | "trunc" | "floor" | "ceil", [a], _) => (float, format!("{p}_{name}({a})")),
            ("round_ties_even", [a], _) => (float, format!("{p}_round({a})")),
            ("copysign", [a, s], _) => (float, format!("{p}_copysign({a}, {s})")),
            ("is_nan" | "is_finite", [a], _) => (ValueType::Bool, format!("{p}_{name}({a})")),
            ("is_infinite", [a], _) => (ValueType::Bool, format!("!({p}_is_finite({a}) || {p}_is_nan({a}))")),
            ("is_sign_negative", [a], _) => {
                let high = match float {
                    ValueType::F64 => format!("{a}.y"),
                    ValueType::TwoFloats => format!("bitcast<u32>({a}.x)"),
                    _ => format!("bitcast<u32>({a})"),
                };
                (ValueType::Bool, format!("({high} >= 0x80000000u)"))
            }
            ("fmod", [a, b], ValueType::F64) => (float, format!("d_fmod({a}, {b})")),
            ("to_bits", [a], ValueType::F64) => return Ok(Symbol::Name(ValueType::U64, a.clone())),
            ("to_bits", [a], ValueType::F32) => (ValueType::U32, format!("bitcast<u32>({a})")),
            ("min_const", [a, c], ValueType::F32) => (float, format!("select({a}, {c}, f_lt({c}, {a}))")),
            ("if_negative", [x, a, b], ValueType::F32) => {
                let is_negative = self.emit(ValueType::Bool, format!("f_lt({x}, {})", f32_literal(0.0)));
                let (_, is_negative) = self.typed(&is_negative, ValueType::Bool)?;
                (float, format!("select({b}, {a}, {is_negative})"))
            }
            ("low_bits_as_exponent", [a], ValueType::F32) => (float, format!("bitcast<f32>(bitcast<u32>({a}) << 23u)")),
            ("add_bits", [a, b], ValueType::F32) => {
                (float, format!("bitcast<f32>(bitcast<u32>({a}) + bitcast<u32>({b}))"))
            }
            _ => return Err(format!("the method `{name}` of {float:?}")),
        };
        Ok(self.emit(ty, expr))
    }

    pub(super) fn cast(&mut self, value: Symbol, to: &str) -> Result<Symbol, Untranslatable> {
        Ok(match (value, to) {
            (Symbol::Name(ValueType::I32, x), "f32") => self.emit(ValueType::F32, format!("f32({x})")),
            (Symbol::Name(ValueType::U32, x), "i32") => self.emit(ValueType::I32, format!("bitcast<i32>({x})")),
            (Symbol::Name(ValueType::I32, x), "u32") => self.emit(ValueType::U32, format!("bitcast<u32>({x})")),
            (Symbol::Name(ValueType::U32, x), "f64") if self.module == SourceModule::TwoFloats => {
                self.emit(ValueType::TwoFloats, format!("t_from_f32(f32({x}))"))
            }
            (Symbol::Name(ValueType::U32, x), "f64") => {
                self.emit(ValueType::F64, format!("d_from_i64({})", i64_from_word(&x)))
            }
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

    pub(super) fn unary(&mut self, op: &syn::UnOp, value: Symbol) -> Result<Symbol, Untranslatable> {
        Ok(match (op, value) {
            (syn::UnOp::Neg(_), Symbol::F32(x)) => Symbol::F32(-x),
            (syn::UnOp::Neg(_), Symbol::F64(x)) => Symbol::F64(-x),
            (syn::UnOp::Neg(_), Symbol::Integer(x)) => Symbol::Integer(-x),
            (syn::UnOp::Neg(_), Symbol::I32(x)) => Symbol::I32(x.wrapping_neg()),
            (syn::UnOp::Neg(_), Symbol::Name(ValueType::I32, x)) => self.emit(ValueType::I32, format!("0 - {x}")),
            (
                syn::UnOp::Neg(_),
                Symbol::Name(ty @ (ValueType::F32 | ValueType::F64 | ValueType::TwoFloats | ValueType::I64), x),
            ) => self.emit(ty, format!("{}_neg({x})", ty.prefix())),
            (syn::UnOp::Not(_), Symbol::Name(ValueType::Bool, x)) => self.emit(ValueType::Bool, format!("!{x}")),
            (_, value) => return Err(format!("a sign or negation of {value:?}")),
        })
    }

    pub(super) fn binary(&mut self, op: &syn::BinOp, a: Symbol, b: Symbol) -> Result<Symbol, Untranslatable> {
        use syn::BinOp;
        if let (Symbol::F64(x), Symbol::F64(y)) = (&a, &b) {
            return folded(op, *x, *y).map(Symbol::F64);
        }
        let wide = |s: &Symbol| matches!(s, Symbol::Name(ty, _) if ty.is_wide());
        if wide(&a) || wide(&b) {
            return self.float_operation(op, self.module.wide(), &a, &b);
        }
        let is_float = |s: &Symbol| matches!(s, Symbol::F32(_) | Symbol::F64(_) | Symbol::Name(ValueType::F32, _));
        let (a, b) = if is_float(&a) || is_float(&b) {
            (literal_as(a, ValueType::F32), literal_as(b, ValueType::F32))
        } else {
            (a, b)
        };
        if let (Symbol::F32(x), Symbol::F32(y)) = (&a, &b) {
            // The sum, product and quotient of two f32 in f64 round to f32 as if rounded once (Figueroa 1995).
            return folded(op, f64::from(*x), f64::from(*y)).map(|z| Symbol::F32(z as f32));
        }
        if is_float(&a) {
            return self.float_operation(op, ValueType::F32, &a, &b);
        }
        let expr = match op {
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
        self.integer_operation(expr, a, b)
    }

    /// Returns the result of an operator on two floats of type `float`.
    fn float_operation(
        &mut self,
        op: &syn::BinOp,
        float: ValueType,
        a: &Symbol,
        b: &Symbol,
    ) -> Result<Symbol, Untranslatable> {
        use syn::BinOp;
        let (p, x, y) = (float.prefix(), self.typed(a, float)?.1, self.typed(b, float)?.1);
        let (ty, expr) = match op {
            BinOp::Add(_) => (float, format!("{p}_add({x}, {y})")),
            BinOp::Sub(_) => (float, format!("{p}_sub({x}, {y})")),
            BinOp::Mul(_) => (float, format!("{p}_mul({x}, {y})")),
            BinOp::Div(_) => (float, format!("{p}_div({x}, {y})")),
            BinOp::Lt(_) => (ValueType::Bool, format!("{p}_lt({x}, {y})")),
            BinOp::Le(_) => (ValueType::Bool, format!("{p}_le({x}, {y})")),
            BinOp::Gt(_) => (ValueType::Bool, format!("{p}_lt({y}, {x})")),
            BinOp::Ge(_) => (ValueType::Bool, format!("{p}_le({y}, {x})")),
            BinOp::Eq(_) => (ValueType::Bool, format!("{p}_eq({x}, {y})")),
            BinOp::Ne(_) => (ValueType::Bool, format!("!{p}_eq({x}, {y})")),
            _ => return Err("a float operator outside the subset".into()),
        };
        Ok(self.emit(ty, expr))
    }

    fn integer_operation(&mut self, op: &str, a: Symbol, b: Symbol) -> Result<Symbol, Untranslatable> {
        if matches!(op, "<<" | ">>") {
            let (ty, x) = self.typed(&a, ValueType::U32)?;
            let (_, n) = self.typed(&literal_as(b, ValueType::U32), ValueType::U32)?;
            let expr = match (ty, op) {
                (ValueType::I64 | ValueType::U64, "<<") => format!("l_shift_left({x}, {n})"),
                (ValueType::I64, _) => format!("l_shr({x}, {})", i64_from_word(&n)),
                (ValueType::U64, _) => return Err("a right shift of u64".into()),
                _ => format!("{x} {op} {n}"),
            };
            return Ok(self.emit(ty, expr));
        }
        let wanted = match (&a, &b) {
            (Symbol::Name(ty, _), _) | (_, Symbol::Name(ty, _)) => *ty,
            (Symbol::I32(_), _) | (_, Symbol::I32(_)) => ValueType::I32,
            _ => ValueType::U32,
        };
        let (ty, x) = self.typed(&a, wanted)?;
        let (_, y) = self.typed(&b, wanted)?;
        let is_boolean = matches!(op, "==" | "!=" | "<" | ">" | "&&" | "||");
        let expr = if matches!(ty, ValueType::I64 | ValueType::U64) {
            match op {
                "+" => format!("l_add({x}, {y})"),
                "-" => format!("l_sub({x}, {y})"),
                "==" => format!("l_eq({x}, {y})"),
                "!=" => format!("!l_eq({x}, {y})"),
                "<" if ty == ValueType::I64 => format!("l_lt({x}, {y})"),
                ">" if ty == ValueType::I64 => format!("l_lt({y}, {x})"),
                "&" | "|" | "^" => format!("{x} {op} {y}"),
                _ => return Err(format!("the operator {op} of a 64-bit integer")),
            }
        } else {
            format!("{x} {op} {y}")
        };
        Ok(self.emit(if is_boolean { ValueType::Bool } else { ty }, expr))
    }

    pub(super) fn select(
        &mut self,
        condition: &Symbol,
        then: Symbol,
        otherwise: Symbol,
    ) -> Result<Symbol, Untranslatable> {
        if let (Symbol::List(then), Symbol::List(otherwise)) = (&then, &otherwise) {
            let pairs = then.iter().zip(otherwise);
            let values = pairs.map(|(a, b)| self.select(condition, a.clone(), b.clone()));
            return values.collect::<Result<_, _>>().map(Symbol::List);
        }
        let (_, condition) = self.typed(condition, ValueType::Bool)?;
        let wanted = self.common_type(&then, &otherwise);
        let (ty, a) = self.typed(&then, wanted)?;
        let (other, b) = self.typed(&otherwise, wanted)?;
        if ty != other {
            return Err("branches of different types".into());
        }
        Ok(self.emit(ty, format!("select({b}, {a}, {condition})")))
    }

    /// Returns the common type of two values.
    pub(super) fn common_type(&self, a: &Symbol, b: &Symbol) -> ValueType {
        let known_type = |s: &Symbol| match s {
            Symbol::Name(ty, _) => Some(*ty),
            Symbol::F32(_) => Some(ValueType::F32),
            Symbol::I32(_) => Some(ValueType::I32),
            Symbol::U32(_) => Some(ValueType::U32),
            _ => None,
        };
        known_type(a).or_else(|| known_type(b)).unwrap_or_else(|| self.literal_type(a))
    }

    /// Returns the type of a value; a literal without a type has the type of the module.
    pub(super) fn literal_type(&self, value: &Symbol) -> ValueType {
        match value {
            Symbol::F64(_) => self.module.float(),
            _ => self.module.integer(),
        }
    }
}

/// Computes a float operation on constants (constant folding).
fn folded(op: &syn::BinOp, x: f64, y: f64) -> Result<f64, Untranslatable> {
    Ok(match op {
        syn::BinOp::Add(_) => x + y,
        syn::BinOp::Sub(_) => x - y,
        syn::BinOp::Mul(_) => x * y,
        syn::BinOp::Div(_) => x / y,
        _ => return Err("a comparison of constants".into()),
    })
}

fn first(arguments: Vec<Symbol>) -> Result<Symbol, Untranslatable> {
    arguments.into_iter().next().ok_or_else(|| "a missing argument".into())
}
