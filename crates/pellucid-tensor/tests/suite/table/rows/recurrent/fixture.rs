//! Reference values of PyTorch 2.15 for packed sequences, in `f64`.

use super::{Kind, LayerConfig, layer, plain, wave};
use pellucid_tensor::{DType, GradOptions, Result, Tensor, grad};

/// Reference values for three steps of two sequences with two features.
struct Case {
    way: LayerConfig,
    lengths: [i64; 2],
    outputs: &'static [&'static [f64]],
    /// The gradients of the inputs and of the recurrent weights.
    gradients: [&'static [f64]; 2],
}

/// Compares a layer with PyTorch's. All parameters and the gradients of the outputs are sine waves.
fn agree(case: &Case) -> Result<bool> {
    let way = case.way;
    let (rows, state) = (way.kind.gates() * 2, if way.projected { 1 } else { 2 });
    let leaf = |shape: &[usize], start| wave(shape, start, DType::F64).requires_grad_(true);
    let mut x = vec![leaf(&[3, 2, 2], 50), leaf(&[rows, 2], 0), leaf(&[rows, state], 10), leaf(&[rows], 20)];
    x.extend([leaf(&[rows], 30), leaf(&[2, state], 60)]);
    if way.kind == Kind::Lstm {
        x.push(leaf(&[2, 2], 70));
    }
    if way.projected {
        x.push(leaf(&[state, 2], 40));
    }
    x.push(Tensor::from(case.lengths));
    let outputs = layer(way, &x)?;
    let weights = [(vec![3, 2, state], 80), (vec![2, state], 90), (vec![2, 2], 95)];
    let grad_outputs = weights[..outputs.len()].iter().map(|(shape, start)| Some(wave(shape, *start, DType::F64)));
    let options = GradOptions { grad_outputs: grad_outputs.collect(), ..GradOptions::default() };
    let gradients = grad(&outputs.iter().collect::<Vec<_>>(), &[&x[0], &x[2]], options)?;
    let near = |got: &Tensor, expected: &&[f64]| {
        let got = got.to_vec::<f64>();
        got.len() == expected.len() && got.iter().zip(*expected).all(|(a, b)| (a - b).abs() < 1e-11)
    };
    Ok(outputs.len() == case.outputs.len()
        && outputs.iter().zip(case.outputs).all(|(a, b)| near(a, b))
        && gradients.iter().zip(&case.gradients).all(|(a, b)| near(a, b)))
}

pub(super) fn agrees(kind: Kind) -> Result<bool> {
    CASES.iter().filter(|case| case.way.kind == kind).try_fold(true, |holds, case| Ok(holds && agree(case)?))
}

const CASES: [Case; 5] = [
    Case {
        way: LayerConfig { reverse: false, lengths: true, projected: false, ..plain(Kind::Tanh) },
        lengths: [3, 2],
        outputs: &[
            &[
                -0.298827752634,
                -0.822194982238,
                0.839275816956,
                -0.626591977154,
                0.856751688454,
                0.870241660371,
                0.979292050667,
                0.997444010475,
                0.994691736886,
                0.96366650777,
                0.0,
                0.0,
            ],
            &[0.994691736886, 0.96366650777, 0.979292050667, 0.997444010475],
        ],
        gradients: [
            &[
                0.118832484336,
                -0.098435579503,
                0.610679974705,
                0.680655490103,
                0.044679183094,
                0.174063693943,
                -0.000850154139,
                0.01277568828,
                0.017999137314,
                0.010474876928,
                0.0,
                0.0,
            ],
            &[0.11172118581, 0.135447326376, -0.449943199346, -0.063673619656],
        ],
    },
    Case {
        way: LayerConfig { reverse: true, lengths: true, projected: false, ..plain(Kind::Relu) },
        lengths: [3, 2],
        outputs: &[
            &[
                4.57550750249,
                2.473381097236,
                5.197917567805,
                2.253230616813,
                2.289794925882,
                1.851813512004,
                2.102509777233,
                2.380782989391,
                0.0,
                0.0,
                0.0,
                0.0,
            ],
            &[4.57550750249, 2.473381097236, 5.197917567805, 2.253230616813],
        ],
        gradients: [
            &[
                0.900590673775,
                0.560697795582,
                1.740655901533,
                2.653505347763,
                0.128828075546,
                0.966785000669,
                1.339760232995,
                2.57327358144,
                0.0,
                0.0,
                0.0,
                0.0,
            ],
            &[1.678015510168, 3.770743498775, 5.058726786748, 6.057315247678],
        ],
    },
    Case {
        way: LayerConfig { reverse: true, lengths: true, projected: false, ..plain(Kind::Gru) },
        lengths: [2, 3],
        outputs: &[
            &[
                -0.917621441771,
                -0.95705740516,
                -0.793759509741,
                -0.692325847125,
                -0.93162508765,
                -0.949383226727,
                -0.787766568031,
                -0.608409981826,
                0.0,
                0.0,
                -0.650920586907,
                -0.196778382271,
            ],
            &[-0.917621441771, -0.95705740516, -0.793759509741, -0.692325847125],
        ],
        gradients: [
            &[
                0.00921254077,
                -0.000453022248,
                -0.2335020415,
                -0.154446530484,
                0.009093061797,
                0.03512050236,
                0.098786976621,
                0.140414229324,
                0.0,
                0.0,
                -0.241574124512,
                -0.218473282298,
            ],
            &[
                0.067250733503,
                0.038767799717,
                0.049462022459,
                0.038722672345,
                -0.055541521681,
                -0.017127465612,
                -0.215150169737,
                -0.052088040418,
                -0.150370308473,
                -0.066699934507,
                -0.156506395674,
                -0.078312300626,
            ],
        ],
    },
    Case {
        way: LayerConfig { reverse: true, lengths: true, projected: false, ..plain(Kind::Lstm) },
        lengths: [1, 3],
        outputs: &[
            &[
                -0.204044679428,
                -0.569787230929,
                -0.129486015918,
                -0.260429904227,
                0.0,
                0.0,
                -0.501440886258,
                0.01219359448,
                0.0,
                0.0,
                -0.0680006406,
                0.238405192513,
            ],
            &[-0.204044679428, -0.569787230929, -0.129486015918, -0.260429904227],
            &[-1.157796673351, -0.674399075049, -1.209394586036, -0.30375065711],
        ],
        gradients: [
            &[
                0.126419453707,
                0.110298212386,
                -0.156651026112,
                -0.198385094963,
                0.0,
                0.0,
                0.273756950995,
                0.227525533078,
                0.0,
                0.0,
                -0.230875130192,
                -0.223264444498,
            ],
            &[
                -0.205151840198,
                -0.107220743708,
                0.118237000481,
                -0.081527138824,
                -0.204520776232,
                -0.063611021555,
                -0.089490449595,
                -0.014821085526,
                0.121774454323,
                -0.002973004296,
                -0.013780767767,
                0.04419011227,
                0.05000017396,
                -0.025366868858,
                0.032112720632,
                0.014871895405,
            ],
        ],
    },
    Case {
        way: LayerConfig { reverse: false, lengths: true, projected: true, ..plain(Kind::Lstm) },
        lengths: [3, 1],
        outputs: &[
            &[0.088526363974, -0.087015985431, 0.024278646382, 0.0, 0.121815229388, 0.0],
            &[0.121815229388, -0.087015985431],
            &[-1.479593274774, -0.873309771547, -0.467536277414, 0.122365399644],
        ],
        gradients: [
            &[
                0.029557416641,
                0.011398466462,
                0.413309753285,
                0.335924780512,
                -0.181449109754,
                -0.288858509888,
                0.0,
                0.0,
                0.032343931379,
                -0.108361325186,
                0.0,
                0.0,
            ],
            &[
                -0.142842170349,
                -0.121023817198,
                0.0079903726,
                0.152482761362,
                0.29419191639,
                -0.005298156247,
                0.006641467013,
                0.015256492427,
            ],
        ],
    },
];
