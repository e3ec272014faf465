//! The bundled data sets.

use pellucid::data::{digits, iris, wine};

#[test]
fn tables_have_the_rows_of_their_sources() {
    let iris = iris().unwrap();
    assert_eq!(iris.shape(), (150, 5));
    let counts = |labels: Vec<usize>| [0, 1, 2].map(|class| labels.iter().filter(|label| **label == class).count());
    assert_eq!(counts(iris.labels("species").unwrap().to_vec()), [50, 50, 50]);
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    assert!((mean(iris.floats("petal_length").unwrap()) - 3.758).abs() < 1e-9);
    let wine = wine().unwrap();
    assert_eq!(wine.shape(), (178, 14));
    assert_eq!(counts(wine.labels("class").unwrap().to_vec()), [59, 71, 48]);
    assert!((mean(wine.floats("proline").unwrap()) - 746.893_258_426_966_3).abs() < 1e-9);
    let features = wine.drop_columns(&["class"]).unwrap();
    assert_eq!(features.tensor(&features.column_names()).unwrap().shape().dims(), [178, 13]);
}

#[test]
fn digits_have_grey_values_of_sixteenths() {
    let digits = digits().unwrap();
    assert_eq!(digits.images.shape().dims(), [1797, 8, 8]);
    let values = (&digits.images * 16.0).to_vec::<i64>();
    // The sum of all grey values in scikit-learn.
    assert_eq!(values.iter().sum::<i64>(), 561_718);
    assert_eq!(values[..8], [0, 0, 5, 13, 9, 1, 0, 0]);
    assert_eq!(digits.labels.to_vec::<i64>().iter().sum::<i64>(), 8_070);
}
