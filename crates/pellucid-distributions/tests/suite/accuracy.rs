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

#[test]
fn divergences_of_close_distributions_with_small_shapes_are_accurate() {
    for (a, b, c, d, value, by_a, by_c) in [
        (2.0, 1.5, 2.0009765625, 1.5009765625, 9.556118940559769e-08, 2.1223242010195538e-05, -2.1204026164994168e-05),
        (0.5, 1.0, 0.500244140625, 1.0, 1.4702776531031518e-07, -0.0012047856934923533, 0.0012042843924033586),
        (5.0, 3.0, 5.0001220703125, 3.0, 1.6489697285327009e-09, -2.7016962370253336e-05, 2.7016598864916977e-05),
        (9.75, 2.0, 10.25, 2.0, 0.01326396390299573, -0.05400162166831593, 0.05259525564214796),
        (
            9.0,
            1.0,
            9.002197265625,
            1.000244140625,
            1.54491461295271e-08,
            -1.4064485411690143e-05,
            1.4060991693239862e-05,
        ),
        (12.0, 2.0, 12.00006103515625, 2.0, 1.6186706595847156e-10, -5.3040693891460196e-06, 5.304055331430196e-06),
        (
            0.0009765625,
            1.0,
            0.0009766221046447754,
            1.0,
            1.8625722792999032e-09,
            -0.06250009790595723,
            0.06249628344150378,
        ),
        (3.0, 1.0, 24.0, 1.0, 31.53505735013662, -8.293615403812755, 2.23429151108684),
        (24.0, 1.0, 3.0, 1.0, 15.385064382687025, 0.8934822617350705, -2.23429151108684),
        (0.125, 2.0, 7.0, 3.0, 59.45496415785816, -449.04341743429273, 9.855811890286157),
    ] {
        let kl = |t: &[Tensor]| kl_divergence(&Gamma::try_new(&t[0], &t[2])?, &Gamma::try_new(&t[1], &t[3])?);
        assert_value("gamma", &[a, c, b, d], value, &[by_a, by_c], kl);
    }
    for (a, b, c, d, value, by_a, by_c) in [
        (2.0, 3.0, 2.0009765625, 3.0, 2.0193838274990463e-07, -0.00041368272569444444, 0.0004135133672831337),
        (
            0.5,
            0.75,
            0.500244140625,
            0.750244140625,
            8.006182147820642e-08,
            -0.0006201523172681782,
            0.0006198092411529764,
        ),
        (9.5, 4.0, 9.5001220703125, 4.0, 2.541527411129449e-10, -4.164070296328206e-06, 4.164022617565499e-06),
        (
            7.0,
            5.0,
            7.001708984375,
            5.001220703125,
            1.6177479400826437e-08,
            -7.810979310093296e-06,
            7.809007024794094e-06,
        ),
        (
            6.0,
            8.0,
            6.000244140625,
            7.999755859375,
            9.371600820798389e-09,
            -4.426829974050667e-05,
            4.426732255902061e-05,
        ),
        (0.5, 12.0, 0.5, 12.000244140625, 1.0778302672376016e-10, 2.033330678749472e-05, -2.033310018758201e-05),
    ] {
        let kl = |t: &[Tensor]| kl_divergence(&Beta::try_new(&t[0], &t[2])?, &Beta::try_new(&t[1], &t[3])?);
        assert_value("beta", &[a, c, b, d], value, &[by_a, by_c], kl);
    }
    // In single precision, the powers of very different shapes do not overflow.
    for (a, c, value) in [(1e6f32, 16.0, 999812.3), (16.0, 1e6, 10074507.0)] {
        let kl = kl_divergence(&Gamma::new(a, 1.0), &Gamma::new(c, 1.0)).unwrap().item::<f32>();
        assert!((kl / value - 1.0).abs() < 1e-5, "{a} and {c}: {kl}");
    }
}

#[test]
fn divergences_of_close_gumbel_distributions_are_accurate() {
    for (m, s, n, t, value, by_s, by_t) in [
        (0.0, 1.0, 0.0, 1.000244140625, 5.4327052662986046e-08, -0.0004450622197113742, 0.00044495358846419056),
        (0.0, 1.000244140625, 0.000244140625, 1.0, 1.09359985064204e-07, 0.0005484700751975573, -0.0005486888030038368),
        (0.0, 1.5, 6.103515625e-05, 1.5, 8.278535169909649e-10, 1.1468992425793516e-05, -1.1470096237968543e-05),
        (0.5, 2.0, 0.25, 0.75, 2.1893980457017252, 4.7036851483792725, -11.709885792473218),
        (0.0, 0.0009765625, 0.5, 1.0, 6.502613289282506, -1024.3712714368864, 0.6764658390566693),
        (0.0, 3.0, 1.0, 1.5, 2.1128698997842728, 2.4479283926320745, -6.182731488423861),
    ] {
        let kl = |v: &[Tensor]| kl_divergence(&Gumbel::try_new(&v[2], &v[0])?, &Gumbel::try_new(&v[3], &v[1])?);
        assert_value("gumbel", &[s, t, m, n], value, &[by_s, by_t], kl);
    }
}

#[test]
fn fisher_snedecor_is_accurate() {
    for (m, n, x, value, by_m, by_n) in [
        (3.0, 5.0, 1.5, -1.503062589894102, 0.10462769894308038, 0.03450093922813389),
        (0.5, 2.0, 1024.0, -13.867816911718478, 0.0077783062513153076, -2.102088883299762),
        (40.0, 24.0, 0.125, -14.098589284788048, -0.27710722411252636, -0.19438535040174557),
    ] {
        let density = |t: &[Tensor]| FisherSnedecor::try_new(&t[0], &t[1])?.try_log_prob(&t[2]);
        assert_value("fisher_snedecor log_prob", &[m, n, x], value, &[by_m, by_n], density);
    }
    // Derivatives by a large parameter cancel in single precision.
    for (m, n, x, value) in [
        (4.0, 1e6, 0.75, -0.4013894613293903),
        (1e6, 4.0, 0.75, -0.4173276437458283),
        (2097152.0, 18.0, 64.0, -32.559004405697706),
        (1e6, 2e6, 1.0009765625, 5.279726465951061),
    ] {
        let density = |t: &[Tensor]| FisherSnedecor::try_new(&t[0], &t[1])?.try_log_prob(&t[2]);
        assert_value("fisher_snedecor log_prob", &[m, n, x], value, &[], density);
    }
    for (m, n, x, value, by_m, by_n) in [
        (3.0, 5.0, 1.5, 0.6778346286938097, -0.009272292677578783, 0.017390669250174923),
        (0.5, 2.0, 1024.0, 0.9990258147229673, -3.7912190485730854e-06, 0.0025333767657670027),
        (2.0, 0.03125, 1048576.0, 0.2454177863789785, -0.0036928090486702367, 6.422183844770855),
        (40.0, 24.0, 0.125, 6.375099617949992e-09, -1.8975057072168277e-09, -1.2818173645071387e-09),
        (4.0, 1024.0, 0.75, 0.44192978995704424, -0.031200848010858852, 2.3875190231835565e-07),
    ] {
        let cdf = |t: &[Tensor]| FisherSnedecor::try_new(&t[0], &t[1])?.try_cdf(&t[2]);
        assert_value("fisher_snedecor cdf", &[m, n, x], value, &[by_m, by_n], cdf);
    }
    for (m, n, value, by_m, by_n) in [
        (3.0, 5.0, 1.428144231855172, 0.00061202800472749, -0.09048016170118037),
        (0.5, 1024.0, -0.24505214391513686, 4.949486793468929, -1.1929076314037324e-06),
        (1024.0, 0.5, 5.435312439814978, 7.156827638942004e-07, -8.247842361038181),
        (1e6, 2e6, -4.93951071255477, -3.33332629628963e-07, -8.333362962971296e-08),
    ] {
        let entropy = |t: &[Tensor]| FisherSnedecor::try_new(&t[0], &t[1])?.try_entropy();
        assert_value("fisher_snedecor entropy", &[m, n], value, &[by_m, by_n], entropy);
    }
}
