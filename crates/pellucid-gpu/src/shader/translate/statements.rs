//! Blocks, assignments, branches and loops.

use super::{
    Scope, Symbol, Untranslatable, ValueType, WgslTranslator, last_segment, literal_value, with_declared_type,
};
use syn::{BinOp, Block, Expr, ExprIf, Item, Pat, Stmt};

/// Returns true if a block has no assignments, no loops and no `return`, so that a call to the function can be inlined.
pub(super) fn is_straight(block: &Block) -> bool {
    let is_branch_straight = |expression: &Expr| match expression {
        Expr::If(branch) => is_if_straight(branch),
        Expr::Return(_) | Expr::While(_) | Expr::Loop(_) | Expr::Assign(_) => false,
        _ => true,
    };
    block.stmts.iter().all(|statement| match statement {
        Stmt::Local(local) => {
            !is_mutable(&local.pat) && local.init.as_ref().is_none_or(|init| is_branch_straight(&init.expr))
        }
        Stmt::Expr(expression, None) => is_branch_straight(expression),
        Stmt::Expr(_, Some(_)) | Stmt::Macro(_) => false,
        Stmt::Item(_) => true,
    })
}

fn is_if_straight(branch: &ExprIf) -> bool {
    let Some((_, otherwise)) = &branch.else_branch else { return false };
    let is_else_straight = match &**otherwise {
        Expr::If(branch) => is_if_straight(branch),
        Expr::Block(block) => is_straight(&block.block),
        _ => false,
    };
    is_else_straight && is_straight(&branch.then_branch)
}

/// Returns true if a pattern declares a mutable variable.
fn is_mutable(pattern: &Pat) -> bool {
    match pattern {
        Pat::Ident(ident) => ident.mutability.is_some(),
        Pat::Tuple(tuple) => tuple.elems.iter().any(is_mutable),
        Pat::Type(typed) => is_mutable(&typed.pat),
        _ => false,
    }
}

impl WgslTranslator<'_> {
    /// Translates a block with its control flow. Returns its value, or `None` if it has none.
    pub(super) fn statements(&mut self, block: &Block, mut scope: Scope) -> Result<Option<Symbol>, Untranslatable> {
        for statement in &block.stmts {
            if self.declaration(statement, &mut scope)? {
                continue;
            }
            match statement {
                // Only the last statement of a block has a value.
                Stmt::Expr(Expr::If(branch), _) => {
                    let value = self.branch(branch, &scope)?;
                    if value.is_some() {
                        return Ok(value);
                    }
                }
                Stmt::Expr(expression, semicolon) => match self.translate_effect(expression, &scope)? {
                    true => {}
                    false if semicolon.is_none() => return self.expression(expression, &scope).map(Some),
                    false => return Err("a statement without an effect".into()),
                },
                _ => return Err("a statement outside the subset".into()),
            }
        }
        Ok(None)
    }

    /// Translates a `let` or a constant. Returns false for any other statement.
    fn declaration(&mut self, statement: &Stmt, scope: &mut Scope) -> Result<bool, Untranslatable> {
        match statement {
            Stmt::Local(local) => {
                let Some(init) = &local.init else { return Err("`let` without a value".into()) };
                let value = self.expression(&init.expr, scope)?;
                self.bind(scope, &local.pat, value)?;
            }
            Stmt::Item(Item::Const(constant)) => {
                let value = self.expression(&constant.expr, scope)?;
                scope.insert(constant.ident.to_string(), with_declared_type(value, &constant.ty));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Translates a `return`, a loop or an assignment. Returns false for any other expression.
    fn translate_effect(&mut self, expression: &Expr, scope: &Scope) -> Result<bool, Untranslatable> {
        match expression {
            Expr::Return(result) => {
                let Some(value) = &result.expr else { return Err("`return` without a value".into()) };
                let value = self.expression(value, scope)?;
                let types = self.returns.clone().unwrap_or_default();
                self.return_line(&value, &types)?;
            }
            Expr::While(repeated) => {
                self.lines.push("loop {".into());
                let condition = self.expression(&repeated.cond, scope)?;
                let (_, condition) = self.typed(&condition, ValueType::Bool)?;
                self.lines.push(format!("if (!{condition}) {{ break; }}"));
                self.statements(&repeated.body, scope.clone())?;
                self.lines.push("}".into());
            }
            Expr::Loop(repeated) => {
                self.lines.push("loop {".into());
                self.statements(&repeated.body, scope.clone())?;
                self.lines.push("}".into());
            }
            Expr::Assign(assignment) => {
                let value = self.expression(&assignment.right, scope)?;
                self.assign(&assignment.left, value, scope)?;
            }
            Expr::Binary(binary) => {
                let op = match binary.op {
                    BinOp::AddAssign(_) => BinOp::Add(Default::default()),
                    BinOp::SubAssign(_) => BinOp::Sub(Default::default()),
                    BinOp::MulAssign(_) => BinOp::Mul(Default::default()),
                    BinOp::DivAssign(_) => BinOp::Div(Default::default()),
                    _ => return Ok(false),
                };
                let old = self.expression(&binary.left, scope)?;
                let value = self.expression(&binary.right, scope)?;
                let new = self.binary(&op, old, value)?;
                self.assign(&binary.left, new, scope)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Adds the line that assigns a value to a variable.
    fn assign(&mut self, to: &Expr, value: Symbol, scope: &Scope) -> Result<(), Untranslatable> {
        let Expr::Path(path) = to else { return Err("an assignment to an expression".into()) };
        let Some(Symbol::Variable(ty, name)) = scope.get(&last_segment(&path.path)) else {
            return Err("an assignment to a constant".into());
        };
        let expr = self.expr_of(&value, *ty, "an assignment")?;
        self.lines.push(format!("{name} = {expr};"));
        Ok(())
    }

    /// Translates an `if` with its control flow. Returns its value, or `None` if it has none.
    fn branch(&mut self, branch: &ExprIf, scope: &Scope) -> Result<Option<Symbol>, Untranslatable> {
        let condition = self.expression(&branch.cond, scope)?;
        let (_, condition_expr) = self.typed(&condition, ValueType::Bool)?;
        let before = std::mem::take(&mut self.lines);
        let then = self.statements(&branch.then_branch, scope.clone())?;
        let mut then_lines = std::mem::take(&mut self.lines);
        let otherwise = match &branch.else_branch {
            None => None,
            Some((_, otherwise)) => match &**otherwise {
                Expr::If(nested) => self.branch(nested, scope)?,
                Expr::Block(block) => self.statements(&block.block, scope.clone())?,
                _ => return Err("an `else` outside the subset".into()),
            },
        };
        let mut else_lines = std::mem::replace(&mut self.lines, before);
        let value = match (then, otherwise) {
            (Some(a), Some(b)) if then_lines.is_empty() && else_lines.is_empty() => {
                return self.select(&condition, a, b).map(Some);
            }
            (Some(a), Some(b)) => Some(self.merged(a, b, &mut then_lines, &mut else_lines)?),
            // A branch without a value returns from the function, so the code after the `if` belongs to the other
            // branch.
            (None, Some(b)) => {
                self.lines.push(format!("if ({condition_expr}) {{"));
                self.lines.append(&mut then_lines);
                self.lines.push("}".into());
                self.lines.append(&mut else_lines);
                return Ok(Some(b));
            }
            (Some(_), None) => return Err("an `if` with one value".into()),
            (None, None) => None,
        };
        self.lines.push(format!("if ({condition_expr}) {{"));
        self.lines.append(&mut then_lines);
        if !else_lines.is_empty() {
            self.lines.push("} else {".into());
            self.lines.append(&mut else_lines);
        }
        self.lines.push("}".into());
        Ok(value)
    }

    /// Returns the value of an `if`: a variable that both branches set.
    fn merged(
        &mut self,
        a: Symbol,
        b: Symbol,
        then_lines: &mut Vec<String>,
        else_lines: &mut Vec<String>,
    ) -> Result<Symbol, Untranslatable> {
        if let (Symbol::List(a), Symbol::List(b)) = (&a, &b) {
            let pairs = a.iter().zip(b);
            let values = pairs.map(|(a, b)| self.merged(a.clone(), b.clone(), then_lines, else_lines));
            return values.collect::<Result<_, _>>().map(Symbol::List);
        }
        let wanted = self.common_type(&a, &b);
        let ((ty, a), (other, b)) = (self.typed(&a, wanted)?, self.typed(&b, wanted)?);
        if ty != other {
            return Err("branches of different types".into());
        }
        let name = self.new_name();
        self.lines.push(format!("var {name}: {};", ty.wgsl()));
        then_lines.push(format!("{name} = {a};"));
        else_lines.push(format!("{name} = {b};"));
        Ok(Symbol::Name(ty, name))
    }

    /// Binds the names of a pattern. A mutable name becomes a variable.
    pub(super) fn bind(&mut self, scope: &mut Scope, pattern: &Pat, value: Symbol) -> Result<(), Untranslatable> {
        match (pattern, value) {
            (Pat::Ident(ident), value) => {
                let value = if ident.mutability.is_some() { self.variable(value)? } else { value };
                scope.insert(ident.ident.to_string(), value);
            }
            (Pat::Wild(_), _) => {}
            (Pat::Type(typed), value) => self.bind(scope, &typed.pat, with_declared_type(value, &typed.ty))?,
            (Pat::Tuple(tuple), Symbol::List(values)) if tuple.elems.len() == values.len() => {
                for (pattern, value) in tuple.elems.iter().zip(values) {
                    self.bind(scope, pattern, value)?;
                }
            }
            _ => return Err("a pattern outside the subset".into()),
        }
        Ok(())
    }

    /// Adds a variable with an initial value.
    fn variable(&mut self, value: Symbol) -> Result<Symbol, Untranslatable> {
        let (ty, expr) = self.typed(&value, self.literal_type(&value))?;
        let name = self.new_name();
        self.lines.push(format!("var {name}: {} = {expr};", ty.wgsl()));
        Ok(Symbol::Variable(ty, name))
    }

    /// Translates a block without control flow.
    pub(super) fn block(&mut self, block: &syn::Block, mut scope: Scope) -> Result<Symbol, Untranslatable> {
        let mut last = None;
        for statement in &block.stmts {
            match statement {
                Stmt::Expr(expression, None) => last = Some(self.expression(expression, &scope)?),
                other if self.declaration(other, &mut scope)? => {}
                _ => return Err("a statement with a side effect".into()),
            }
        }
        last.ok_or_else(|| "a block without a value".into())
    }

    fn expressions<'e>(
        &mut self,
        list: impl IntoIterator<Item = &'e Expr>,
        scope: &Scope,
    ) -> Result<Vec<Symbol>, Untranslatable> {
        list.into_iter().map(|expression| self.expression(expression, scope)).collect()
    }

    pub(super) fn expression(&mut self, expression: &Expr, scope: &Scope) -> Result<Symbol, Untranslatable> {
        match expression {
            Expr::Paren(inner) => self.expression(&inner.expr, scope),
            Expr::Group(inner) => self.expression(&inner.expr, scope),
            Expr::Lit(literal) => literal_value(&literal.lit),
            Expr::Path(path) => self.path(&path.path, scope),
            Expr::Tuple(tuple) => self.expressions(&tuple.elems, scope).map(Symbol::List),
            Expr::Array(array) => self.expressions(&array.elems, scope).map(Symbol::List),
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
            Expr::If(branch) if self.returns.is_some() => {
                self.branch(branch, scope)?.ok_or_else(|| "an `if` without a value".into())
            }
            Expr::If(branch) => {
                let condition = self.expression(&branch.cond, scope)?;
                let then = self.block(&branch.then_branch, scope.clone())?;
                let Some((_, otherwise)) = &branch.else_branch else { return Err("`if` without `else`".into()) };
                let otherwise = self.expression(otherwise, scope)?;
                self.select(&condition, then, otherwise)
            }
            Expr::Call(call) => {
                let arguments = self.expressions(&call.args, scope)?;
                let Expr::Path(path) = &*call.func else { return Err("a call of an expression".into()) };
                self.call(&path.path, arguments, scope)
            }
            Expr::MethodCall(call) => {
                let receiver = self.expression(&call.receiver, scope)?;
                let arguments = self.expressions(&call.args, scope)?;
                self.method(&call.method.to_string(), receiver, arguments)
            }
            Expr::Field(field) => match (self.expression(&field.base, scope)?, &field.member) {
                (Symbol::List(values), syn::Member::Unnamed(index)) => {
                    values.get(index.index as usize).cloned().ok_or_else(|| "a tuple without this element".into())
                }
                _ => Err("a field of a value that is not a tuple".into()),
            },
            Expr::Index(index) => {
                let array = self.expression(&index.expr, scope)?;
                let index = self.expression(&index.index, scope)?;
                self.element(&array, index)
            }
            _ => Err("an expression outside the subset".into()),
        }
    }
}
