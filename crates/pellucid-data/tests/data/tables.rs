//! Tables: selections, splits, missing values and tensors.

use pellucid::data::{
    Categories, Column, ColumnType, Dataset, FillValue, Table, TableTensorOptions, from_fn, random_split,
};
use pellucid::{DType, Error, Result};

/// A table of numbers and strings with missing values.
fn animals() -> Table {
    Table::from_columns([
        ("legs", Column::from(vec![4, 2, 4, 0, 4])),
        ("weight", Column::from(vec![4.5, 0.02, f64::NAN, 1.0, 30.0])),
        ("kind", Categories::new(&[Some("cat"), Some("bird"), Some("dog"), None, Some("dog")]).into()),
    ])
    .unwrap()
}

fn text<T>(result: Result<T>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn columns_and_rows_are_selected_by_name_and_index() {
    let table = animals();
    assert_eq!((table.shape(), table.len(), table.is_empty()), ((5, 3), 5, false));
    assert_eq!(table.column_names(), ["legs", "weight", "kind"]);
    assert_eq!(table.select(&["kind", "legs"]).unwrap().column_names(), ["kind", "legs"]);
    assert_eq!(table.drop_columns(&["weight"]).unwrap().column_names(), ["legs", "kind"]);
    let rows = table.rows(&[4, 0, 4]).unwrap();
    assert_eq!(rows.column("legs").unwrap(), &Column::from(vec![4, 4, 4]));
    assert_eq!(rows.column("kind").unwrap().text(0), "dog");
    let replaced = table.with_column("legs", vec![1.5; 5]).unwrap().with_column("id", vec![0, 1, 2, 3, 4]).unwrap();
    assert_eq!(replaced.column_names(), ["legs", "weight", "kind", "id"]);
    assert_eq!(replaced.column("legs").unwrap().column_type(), ColumnType::Float);
    // A selection without columns keeps the number of rows.
    assert_eq!(table.select(&[""; 0]).unwrap().shape(), (5, 0));
}

#[test]
fn errors_name_the_column_the_row_and_a_remedy() {
    let table = animals();
    assert!(text(table.column("wings")).contains(r#"no column "wings"; the columns are legs, weight, kind"#));
    assert!(text(table.tensor(&["legs", "wings"])).contains("wings"));
    assert!(
        text(table.tensor(&["kind"])).contains(r#""kind" must have numbers, but has text, such as "cat" in row 0"#)
    );
    assert!(text(table.tensor(&["weight"])).contains(r#""weight" in row 2 is missing; drop_missing()"#));
    assert!(text(table.labels("kind")).contains("row 3 is missing"));
    assert!(text(table.labels("weight")).contains("to_categories"));
    assert!(text(table.categories("legs")).contains("to_categories"));
    assert!(text(table.with_column("x", vec![1])).contains(r#""x" has 1 rows, but "legs" has 5"#));
    assert!(text(table.select(&["legs", "legs"])).contains("two columns"));
    assert!(matches!(table.rows(&[0, 5]), Err(Error::IndexOutOfBounds { index: 5, len: 5, .. })));
    assert!(text(table.split([0.5, 0.4], 0)).contains("sum to 1"));
    let fraction = TableTensorOptions { dtype: DType::I64, ..Default::default() };
    assert!(text(table.rows(&[0]).unwrap().tensor_with(&["weight"], fraction)).contains("4.5"));
}

#[test]
fn values_outside_of_the_range_of_a_dtype_are_errors() {
    let columns = [("far", Column::from(vec![1e39, f64::INFINITY])), ("count", Column::from(vec![300, -1]))];
    let table = Table::from_columns(columns).unwrap();
    let tensor =
        |name: &str, dtype: DType| table.tensor_with(&[name], TableTensorOptions { dtype, ..Default::default() });
    assert!(text(tensor("far", DType::F32)).contains(r#""far" has the value 1e39, which f32 cannot represent"#));
    assert_eq!(tensor("far", DType::F64).unwrap().to_vec::<f64>(), [1e39, f64::INFINITY]);
    assert!(text(tensor("count", DType::U8)).contains("300"));
    assert!(text(tensor("count", DType::I8)).contains("300"));
    assert_eq!(tensor("count", DType::I16).unwrap().to_vec::<i16>(), [300, -1]);
}

#[test]
fn tensors_have_the_values_of_columns() {
    let table = animals();
    let options = TableTensorOptions { dtype: DType::F64, allow_missing: true };
    let x = table.tensor_with(&["weight", "legs"], options).unwrap();
    assert_eq!((x.shape().dims(), x.dtype()), (&[5, 2][..], DType::F64));
    let values = x.to_vec::<f64>();
    assert_eq!((values[0], values[1], values[9]), (4.5, 4.0, 4.0));
    assert!(values[4].is_nan());
    assert_eq!(table.tensor(&["legs"]).unwrap().dtype(), DType::F32);
    assert_eq!(table.tensor(&[""; 0]).unwrap().shape().dims(), [5, 0]);
    // Integers are exact beyond 2⁵³.
    let large = Table::from_columns([("id", Column::from(vec![i64::MAX, 1]))]).unwrap();
    let exact = TableTensorOptions { dtype: DType::I64, ..Default::default() };
    assert_eq!(large.tensor_with(&["id"], exact).unwrap().to_vec::<i64>(), [i64::MAX, 1]);
    let mixed = large.clone().with_column("score", vec![2.0, -3.0]).unwrap();
    let values = mixed.tensor_with(&["id", "score"], exact).unwrap();
    assert_eq!(values.to_vec::<i64>(), [i64::MAX, 2, 1, -3]);
    assert_eq!(large.labels("id").unwrap().to_vec::<i64>(), [i64::MAX, 1]);
}

#[test]
fn parts_of_a_split_have_common_categories_and_the_rows_of_random_split() {
    let n = 50;
    let table = Table::from_columns([
        ("row", Column::from((0..n).collect::<Vec<i64>>())),
        ("class", Column::from((0..n).map(|row| ["c", "a", "b"][row as usize % 3]).collect::<Vec<_>>())),
    ])
    .unwrap();
    let [train, test] = table.split([0.9, 0.1], 3).unwrap();
    let [expected, _] = random_split(from_fn(n as usize, Ok), [0.9, 0.1], 3).unwrap();
    let rows: Vec<usize> = train.labels("row").unwrap().to_vec();
    assert_eq!(rows, (0..expected.len()).map(|i| expected.get(i).unwrap()).collect::<Vec<_>>());
    assert_eq!(train.categories("class").unwrap(), test.categories("class").unwrap());
    for part in [train, test] {
        let codes = part.labels("class").unwrap().to_vec::<i64>();
        let rows = part.labels("row").unwrap().to_vec::<i64>();
        assert!(rows.iter().zip(&codes).all(|(row, code)| *code == [2, 0, 1][*row as usize % 3]));
    }
}

#[test]
fn missing_values_are_dropped_or_filled() {
    let table = animals();
    assert_eq!(["legs", "weight", "kind"].map(|name| table.missing(name).unwrap()), [0, 1, 1]);
    assert_eq!(table.drop_missing().unwrap().labels("legs").unwrap().to_vec::<i64>(), [4, 2, 4]);
    let weight = |value| table.fill_missing(&["weight"], value).unwrap().floats("weight").unwrap()[2];
    assert_eq!(weight(FillValue::Mean), (0.02 + 1.0 + 4.5 + 30.0) / 4.0);
    assert_eq!(weight(FillValue::Median), 2.75);
    assert_eq!(weight(FillValue::Mode), 0.02);
    assert_eq!(weight(FillValue::Number(-1.0)), -1.0);
    let kind = |value| table.fill_missing(&["legs", "kind"], value).map(|table| table.column("kind").unwrap().text(3));
    assert_eq!(kind(FillValue::Mode).unwrap(), "dog");
    let filled = table.fill_missing(&["kind"], FillValue::Text("cow".to_string())).unwrap();
    assert_eq!(filled.categories("kind").unwrap(), ["bird", "cat", "cow", "dog"]);
    assert_eq!(filled.labels("kind").unwrap().to_vec::<i64>(), [1, 0, 3, 2, 3]);
    // Categories of integers stay in the order of their values.
    let years = Table::from_columns([("year", Column::from(vec![2, 10, 9]))]).unwrap().to_categories("year").unwrap();
    for (text, names, labels) in [
        ("5", ["2", "5", "9", "10"], [0, 3, 2]),
        ("11", ["2", "9", "10", "11"], [0, 2, 1]),
        ("unknown", ["2", "9", "10", "unknown"], [0, 2, 1]),
    ] {
        let filled = years.fill_missing(&["year"], FillValue::Text(text.to_string())).unwrap();
        assert_eq!(filled.categories("year").unwrap(), names);
        assert_eq!(filled.labels("year").unwrap().to_vec::<i64>(), labels);
    }
    assert!(text(kind(FillValue::Mean)).contains("Mean"));
    assert!(text(table.fill_missing(&["weight"], FillValue::Text("x".to_string()))).contains("numbers"));
    let empty = Table::from_columns([("x", Column::from(vec![f64::NAN; 2]))]).unwrap();
    assert!(text(empty.fill_missing(&["x"], FillValue::Median)).contains("all values"));
}

#[test]
fn a_table_is_shown_with_its_shape() {
    let shown = animals().to_string();
    let expected = "legs  weight  kind\n   4     4.5   cat\n   2    0.02  bird\n   4           dog\n   0     1.0      \n   \
                    4    30.0   dog\n[5 rows × 3 columns]";
    assert_eq!(shown, expected);
}
