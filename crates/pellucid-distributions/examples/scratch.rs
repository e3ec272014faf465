#[path = "../tests/suite/families.rs"]
mod families;
use pellucid::distributions::*;
use pellucid::{DType, Tensor, ops};
use std::collections::BTreeMap;
use std::io::BufRead;
fn kl(f: &str, g: &str, p: &dyn Fn(&str) -> Tensor) -> pellucid::Result<Tensor> {
    let q = |n: &str| p(&format!("q_{n}"));
    macro_rules! two { ($a:ident($($x:literal),*), $b:ident($($y:literal),*)) => {
        kl_divergence(&$a::new($(&p($x)),*), &$b::new($(&q($y)),*)) } }
    match (f, g) {
        ("gamma", "gamma") => two!(Gamma("concentration", "rate"), Gamma("concentration", "rate")),
        ("gamma", "exponential") => two!(Gamma("concentration", "rate"), Exponential("rate")),
        ("exponential", "gamma") => two!(Exponential("rate"), Gamma("concentration", "rate")),
        ("exponential", "exponential") => two!(Exponential("rate"), Exponential("rate")),
        ("chi2", "chi2") => two!(Chi2("df"), Chi2("df")),
        ("beta", "beta") => two!(Beta("concentration1", "concentration0"), Beta("concentration1", "concentration0")),
        ("normal", "normal") => two!(Normal("loc", "scale"), Normal("loc", "scale")),
        ("laplace", "laplace") => two!(Laplace("loc", "scale"), Laplace("loc", "scale")),
        ("gumbel", "gumbel") => two!(Gumbel("loc", "scale"), Gumbel("loc", "scale")),
        ("cauchy", "cauchy") => two!(Cauchy("loc", "scale"), Cauchy("loc", "scale")),
        ("poisson", "poisson") => two!(Poisson("rate"), Poisson("rate")),
        ("bernoulli", "bernoulli") => two!(Bernoulli("probs"), Bernoulli("probs")),
        ("geometric", "geometric") => two!(Geometric("probs"), Geometric("probs")),
        ("pareto", "pareto") => two!(Pareto("scale", "alpha"), Pareto("scale", "alpha")),
        ("continuous_bernoulli", "continuous_bernoulli") => two!(ContinuousBernoulli("probs"), ContinuousBernoulli("probs")),
        _ => panic!("{f} {g}"),
    }
}
fn main() {
    let dt = |s: &str| if s == "f32" { DType::F32 } else { DType::F64 };
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let w: Vec<&str> = line.split(' ').collect();
        // dtype family property wrt(or -) name=value ...   ("x" is the argument)
        let dtype = dt(w[0]);
        let map: BTreeMap<String, Tensor> = w[4..].iter().map(|kv| {
            let (k, v) = kv.split_once('=').unwrap();
            let t = Tensor::from(v.parse::<f64>().unwrap()).to_dtype(dtype);
            (k.to_string(), if w[3] == k { t.detach().requires_grad_(true) } else { t })
        }).collect();
        let get = |n: &str| map[n].clone();
        let run = || -> pellucid::Result<Tensor> {
            Ok(match (w[1], w[2]) {
                ("op", "betainc") => ops::betainc(&get("a"), &get("b"), &get("x"))?,
                ("op", "betaincc") => ops::betaincc(&get("a"), &get("b"), &get("x"))?,
                ("op", "igamma") => ops::igamma(&get("a"), &get("x"))?,
                ("op", "igammac") => ops::igammac(&get("a"), &get("x"))?,
                (f, p) if p.starts_with("kl:") => kl(f, &p[3..], &get)?,
                (f, p) => {
                    let logits = map.contains_key("logits");
                    let d: Box<dyn Distribution> = match f {
                        "bernoulli" if logits => Box::new(Bernoulli::from_logits(get("logits"))),
                        "continuous_bernoulli" if logits => Box::new(ContinuousBernoulli::from_logits(get("logits"))),
                        _ => families::distribution(f, &get),
                    };
                    match p {
                        "log_prob" => d.try_log_prob(&get("x"))?,
                        "cdf" => d.try_cdf(&get("x"))?,
                        "icdf" => d.try_icdf(&get("x"))?,
                        "entropy" => d.try_entropy()?,
                        "mean" => d.try_mean()?,
                        "variance" => d.try_variance()?,
                        _ => panic!(),
                    }
                }
            })
        };
        match run() {
            Err(e) => println!("ERR {e}"),
            Ok(y) if w[3] == "-" => println!("{:?}", y.to_dtype(DType::F64).item::<f64>()),
            Ok(y) => {
                y.sum(..).backward();
                println!("{:?}", map[w[3]].grad().map(|g| g.to_dtype(DType::F64).item::<f64>()).unwrap_or(0.0))
            }
        }
    }
}
