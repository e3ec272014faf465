//! Distribution functions, and results that textbook formulas compute with cancellation. The references are computed
//! by mpmath with 60 digits; numbers without an exact `f32` value are not arguments.

use pellucid::distributions::*;
use pellucid::{DType, Result, Tensor};

/// The relative errors of values in `f64` and `f32`.
const TOLERANCES: [(DType, f64); 2] = [(DType::F64, 1e-12), (DType::F32, 1e-5)];

/// Compares a value, and its derivatives with respect to the first arguments, in `f64` and `f32`.
fn assert_value(label: &str, arguments: &[f64], value: f64, slopes: &[f64], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    for (dtype, tolerance) in TOLERANCES {
        let tensor = |(k, &x): (usize, &f64)| Tensor::from(x).to_dtype(dtype).requires_grad_(k < slopes.len());
        let tensors: Vec<Tensor> = arguments.iter().enumerate().map(tensor).collect();
        let y = f(&tensors).unwrap_or_else(|error| panic!("{label}: {error}"));
        let check = |part: String, actual: f64, expected: f64, tolerance: f64| {
            let close = (actual - expected).abs() <= tolerance * expected.abs();
            assert!(close, "{label} of {arguments:?} in {dtype}, {part}: {actual:?}, not {expected:?}");
        };
        check("value".to_string(), y.to_dtype(DType::F64).item(), value, tolerance);
        if !slopes.is_empty() {
            y.backward();
        }
        for (k, &slope) in slopes.iter().enumerate() {
            let gradient = tensors[k].grad().expect("the argument has a gradient").to_dtype(DType::F64).item();
            check(format!("derivative {k}"), gradient, slope, 20.0 * tolerance);
        }
    }
}

#[test]
fn beta_has_a_distribution_function() {
    for (a, b, x, value, by_a, by_b) in [
        (2.0, 3.0, 0.375, 0.481201171875, -0.24675645939602353, 0.15228459769218458),
        (0.5, 0.25, 0.125, 0.13935328411910122, -0.44007671988854147, 0.43158910084746205),
        (0.0009765625, 2.0, 7.62939453125e-06, 0.9895240117254217, -10.671507152305285, 0.000623022486943103),
        (300.0, 200.0, 0.5625, 0.04439990586596108, -0.0035695340449636826, 0.004957825520132472),
        (1e5, 2e5, 0.3359375, 0.9987456414438276, -1.0672442271438016e-05, 5.367524516860537e-06),
        (40.0, 0.015625, 0.96875, 0.00231441019612219, -0.0001142064159501003, 0.1507755522715029),
        (1.5, 2.5, 0.9999990463256836, 0.9999999999999982, -2.2067706797189794e-15, 2.4806590327673672e-14),
        (0.75, 8192.0, 0.0001220703125, 0.7399937738914428, -0.4263458087024958, 3.6646578630586324e-05),
    ] {
        assert_value("beta cdf", &[a, b, x], value, &[by_a, by_b], |t| Beta::try_new(&t[0], &t[1])?.try_cdf(&t[2]));
    }
    let tail = Beta::new(Tensor::from(8.0), 5.0).cdf(&Tensor::from(9.094947017729282e-13)).item::<f64>();
    assert!((tail / 2.3174297955651442e-94 - 1.0).abs() < 1e-13, "{tail:?}");
    let ends = Beta::new(Tensor::from(2.0), 3.0).cdf(&Tensor::from([-1.0, 0.0, 1.0, 2.0])).to_vec::<f64>();
    assert_eq!(ends, [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn student_t_has_a_distribution_function() {
    for (df, z, value, by_df) in [
        (1.0, -2.0, 0.14758361765043326, -0.09683194233054404),
        (3.0, 0.5, 0.6742760175759245, 0.00529909273003018),
        (3.0, -20.0, 0.00013660162512365586, -0.0002859110843979261),
        (0.75, -1048576.0, 9.473741575312207e-06, -0.00013135463003071375),
        (25.0, -7.0, 1.2248784641244411e-07, -2.7487090365665376e-08),
        (1e4, -3.0, 0.0013532240949988331, -3.3282403426193825e-10),
        (2.5, -9.313225746154785e-10, 0.4999999996630394, -1.262355396771445e-11),
    ] {
        let cdf = |t: &[Tensor]| StudentT::try_new(&t[0], 0.0, 2.0)?.try_cdf(&(&t[1] * 2.0));
        assert_value("student_t cdf", &[df, z], value, &[by_df], cdf);
    }
    let normal = |t: &[Tensor]| StudentT::try_new(&t[0], 0.0, 1.0)?.try_cdf(&t[1]);
    assert_value("student_t cdf", &[134_217_728.0, 1.5], 0.933192797555071, &[], normal);
    let ends = [f64::NEG_INFINITY, f64::INFINITY].map(Tensor::from).map(|x| StudentT::new(3.0, 0.0, 1.0).cdf(&x));
    assert_eq!(ends.map(|p| p.item::<f64>()), [0.0, 1.0]);
}

#[test]
fn trials_have_distribution_functions() {
    for (n, p, x, value, by_p) in [
        (20, 0.25, 4.0, 0.41484150253018015, -4.046623037138488),
        (1_000_000, 0.5, 499_000.0, 0.02280414993269104, -108.197941974953),
        (50, 0.9375, 49.0, 0.9603207166267523, -2.1162284465732117),
        (30, 9.5367431640625e-07, 0.0, 0.9999713901661345, -29.999170314422276),
    ] {
        assert_value("binomial cdf", &[p, x], value, &[by_p], |t| Binomial::try_new(n, &t[0])?.try_cdf(&t[1]));
        let steps = |x: f64| Binomial::new(n, Tensor::from(p)).cdf(&Tensor::from(x)).item::<f64>();
        assert_eq!([steps(-0.5), steps(n as f64), steps(x)], [0.0, 1.0, steps(x + 0.5)]);
    }
    for (r, p, x, value, by_r, by_p) in [
        (2.5, 0.25, 3.0, 0.9747543012200216, -0.02194373786601034, -0.3663059111466162),
        (1000.0, 0.5, 900.0, 0.011554422554450536, -0.0006757634307698327, -2.6346917103752916),
        (0.5, 0.9375, 20.0, 0.8983023318834574, -0.26871711668727577, -2.8277133891770285),
        (3.0, 0.0009765625, 0.0, 0.9970731725916266, -0.0009741800214062864, -2.994143486022949),
    ] {
        let cdf = |t: &[Tensor]| NegativeBinomial::try_new(&t[0], &t[1])?.try_cdf(&t[2]);
        assert_value("negative_binomial cdf", &[r, p, x], value, &[by_r, by_p], cdf);
    }
    let at = Tensor::from([-1.0, f64::INFINITY]);
    assert_eq!(NegativeBinomial::new(2.0, Tensor::from(0.5)).cdf(&at).to_vec::<f64>(), [0.0, 1.0]);
}

#[test]
fn the_distribution_function_of_gamma_has_a_gradient_by_the_concentration() {
    for (a, x, value, by_a) in [
        (0.5, 0.25, 0.5204998778130465, -0.797947316783223),
        (3.0, 2.0, 0.32332358381693654, -0.2318486720439896),
        (0.0009765625, 9.313225746154785e-10, 0.9804494959608113, -19.82351715979421),
        (40.0, 20.0, 5.3202025112462175e-05, -3.866345540913452e-05),
        (40.0, 80.0, 0.9999997191278374, -2.046465721871983e-07),
        (1000.0, 1010.0, 0.6276789447369947, -0.011945731337225441),
        (65536.0, 65000.0, 0.017944514618771456, -0.00017270408530475946),
        (0.25, 30.0, 0.999999999999998, -1.5058630860651256e-14),
    ] {
        assert_value("gamma cdf", &[a, x], value, &[by_a], |t| Gamma::try_new(&t[0], 1.0)?.try_cdf(&t[1]));
    }
}

#[test]
fn von_mises_has_an_entropy_and_an_accurate_variance() {
    for (k, entropy, variance) in [
        (9.5367431640625e-07, 1.8378770664091182, 0.9999995231628418),
        (0.5, 1.7781769793044258, 0.757500387419198),
        (4.0, 0.8087594178266024, 0.13647738897544942),
        (29.5, -0.2645556897328221, 0.01709793633218284),
        (31.0, -0.28978610362717505, 0.016263527987002126),
        (90.0, -0.8281650108498627, 0.00557116216979655),
        (7649.0, -3.0521938792399625, 6.537015873217631e-05),
        (1_099_511_627_776.0, -12.444005077994007, 4.547473508865675e-13),
    ] {
        assert_value("entropy", &[k], entropy, &[], |t| VonMises::try_new(0.0, &t[0])?.try_entropy());
        assert_value("variance", &[k], variance, &[], |t| VonMises::try_new(0.0, &t[0])?.try_variance());
    }
}

#[test]
fn continuous_bernoulli_is_accurate_for_all_log_odds() {
    for (logits, u, expected) in [
        (0.5, 9.094947017729282e-13, 1.1800171172579881e-12),
        (0.5, 0.25, 0.3005956502256112),
        (-3.0, 9.094947017729282e-13, 2.88071208958641e-13),
        (6.103515625e-05, 0.75, 0.7500057219876906),
        (40.0, 9.313225746154785e-10, 0.4801396146940819),
        (-200.0, 0.5, 0.0034657359027997266),
        (100.0, 0.5, 0.9930685281944005),
        (0.015625, 0.3125, 0.31418173511816255),
    ] {
        let icdf = |t: &[Tensor]| ContinuousBernoulli::try_from_logits(&t[0])?.try_icdf(&t[1]);
        assert_value("continuous_bernoulli icdf", &[logits, u], expected, &[], icdf);
    }
    for (logits, mean, variance, entropy) in [
        (0.015625, 0.5013020780351735, 0.08333231609058435, -1.0172463953896035e-05),
        (0.5, 0.5414940825367983, 0.08230191096723624, -0.010351990275642405),
        (-0.9375, 0.4229959756677478, 0.07979512832783325, -0.03583471863189052),
        (1.0625, 0.586919295078072, 0.07883224540793689, -0.04574873548267464),
        (8.0, 0.8753355752008413, 0.015289312188443335, -1.0824616621946428),
        (-40.0, 0.024999999999999994, 0.0006249999999999958, -2.6888794541139367),
    ] {
        let pixel = |t: &[Tensor]| ContinuousBernoulli::try_from_logits(&t[0]);
        assert_value("mean", &[logits], mean, &[], |t| pixel(t)?.try_mean());
        assert_value("variance", &[logits], variance, &[], |t| pixel(t)?.try_variance());
        assert_value("entropy", &[logits], entropy, &[], |t| pixel(t)?.try_entropy());
    }
}

#[test]
fn moments_of_narrow_distributions_are_accurate() {
    for (a, b, mean, variance) in [
        (49.0625, 21.375, 0.9283710027145643, 0.000555798396968013),
        (2.0, 4.0, 0.40634920634920635, 0.03488032249937012),
        (1024.0, 3.0, 0.9982118846710429, 1.2912662200839455e-06),
        (0.5, 0.5, 0.5333333333333333, 0.1219047619047619),
        (65536.0, 1024.0, 0.9998854258278858, 3.826675513089672e-10),
    ] {
        assert_value("kumaraswamy mean", &[a, b], mean, &[], |t| Kumaraswamy::try_new(&t[0], &t[1])?.try_mean());
        let spread = |t: &[Tensor]| Kumaraswamy::try_new(&t[0], &t[1])?.try_variance();
        assert_value("kumaraswamy variance", &[a, b], variance, &[], spread);
    }
    for (k, variance) in
        [(4096.0, 9.798313432727999e-08), (1.5, 0.375690284813932), (64.0, 0.00038585486508468106), (0.5, 20.0)]
    {
        assert_value("weibull variance", &[k], variance, &[], |t| Weibull::try_new(1.0, &t[0])?.try_variance());
    }
}

#[test]
fn densities_with_one_large_parameter_are_accurate() {
    for (a, b, x, value, by_a, by_b) in [
        (0.5, 8192.0, 0.0001220703125, 7.438594183205464, 1.9635100266423051, -6.104074479183648e-05),
        (0.75, 8000.0, 9.5367431640625e-07, 9.995212403742528, -3.7898546605877312, 9.279779004207638e-05),
        (4.0, 8192.0, 0.0001220703125, 6.219947233279856, -1.2556905129613232, 0.00036611410480371536),
        (0.125, 65536.0, 1.52587890625e-05, 8.070943326372047, 8.388486941243286, -1.3351544113219182e-05),
    ] {
        let density = |t: &[Tensor]| Beta::try_new(&t[0], &t[1])?.try_log_prob(&t[2]);
        assert_value("beta log_prob", &[a, b, x], value, &[by_a, by_b], density);
    }
    let density = |t: &[Tensor]| StudentT::try_new(&t[0], 0.0, 1.0)?.try_log_prob(&Tensor::from(1.5f32));
    assert_value("student_t log_prob", &[47288.0], -2.0439408464423123, &[4.892405272558558e-11], density);
}

#[test]
fn divergences_of_close_distributions_are_accurate() {
    for (a, b, c, d, value, by_a, by_c) in [
        (1e6, 2.0, 1000256.0, 2.0, 0.0327652205364021, -0.0002560001280000427, 0.00025596736555861486),
        (1048576.0, 3.0, 1048576.0, 3.0009765625, 0.055543502171067995, 0.0003255208333333333, -0.0003254678629218695),
        (1000.0, 1.0, 1001.0, 1.0009765625, 5.243048106451472e-07, -2.3937666666633334e-05, 2.3914026944541103e-05),
        (12.0, 2.0, 11.0, 2.0, 0.04476640717744147, 0.08690187287176838, -0.09090909090909091),
        (0.015625, 1.0, 0.015625, 4.0, 0.02521415060750171, 3.0, -1.3862943611198906),
    ] {
        let kl = |t: &[Tensor]| kl_divergence(&Gamma::try_new(&t[0], &t[2])?, &Gamma::try_new(&t[1], &t[3])?);
        assert_value("gamma", &[a, c, b, d], value, &[by_a, by_c], kl);
    }
    for (a, b, c, d, value, by_a, by_c) in [
        (1e6, 3e6, 1000256.0, 3e6, 0.024573394269520182, -0.000192000120000042, 0.000191969405471749),
        (1000.0, 2000.0, 1001.0, 2000.0, 0.000333407407399177, -0.0006671112716049051, 0.0006666666666666666),
        (8192.0, 0.5, 8200.0, 0.5, 2.382780099887358e-07, -5.960828275418416e-08, 5.955012655909251e-08),
    ] {
        let kl = |t: &[Tensor]| kl_divergence(&Beta::try_new(&t[0], &t[2])?, &Beta::try_new(&t[1], &t[3])?);
        assert_value("beta", &[a, c, b, d], value, &[by_a, by_c], kl);
    }
    // Scales and rates 1 and 1 + 2⁻¹².
    let ratio = 1.000244140625;
    type Divergence = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let rows: [(&str, Divergence, f64); 3] = [
        ("normal", |s, t| kl_divergence(&Normal::new(0.0, s), &Normal::new(0.0, t)), 5.958039957452122e-08),
        ("laplace", |s, t| kl_divergence(&Laplace::new(0.0, s), &Laplace::new(LOCATION, t)), 5.063582504070131e-07),
        ("cauchy", |s, t| kl_divergence(&Cauchy::new(0.0, s), &Cauchy::new(LOCATION, t)), 2.5325787768125834e-07),
    ];
    for (label, kl, expected) in rows {
        assert_value(label, &[1.0, ratio], expected, &[], |t| kl(&t[0], &t[1]));
    }
    let exponential = |t: &[Tensor]| kl_divergence(&Exponential::new(&t[0]), &Exponential::new(&t[1]));
    assert_value("exponential", &[1.0, ratio], 2.979747263729084e-08, &[], exponential);
}

/// 2⁻¹⁰.
const LOCATION: f64 = 0.0009765625;
