//! cuBLASLt's products: right, and with the same bits at every number of rows, whose algorithms differ.

use half::bf16;
use kd_kernels::selftest::{Random, upload};
use kd_kernels::{Device, Product, Stream, TensorMut, TensorRef, testing};

const N: usize = 200;
const K: usize = 7168;
/// Rows that there can be.
const MOST: usize = 4096;
/// Rows of the largest product here.
const ROWS: usize = 2100;

struct Operands {
    x: Vec<bf16>,
    w: Vec<bf16>,
}

impl Operands {
    fn random() -> Self {
        let mut random = Random::new(3);
        Self { x: random.values(ROWS * K, 1.0), w: random.values(N * K, 1.0) }
    }

    /// The products of `rows` rows from `first` on.
    fn multiply(&self, stream: &Stream, product: &Product, first: usize, rows: usize) -> Vec<bf16> {
        let x = upload(stream, &self.x[first * K..(first + rows) * K]).expect("memory");
        let w = upload(stream, &self.w).expect("memory");
        let mut y = upload(stream, &vec![bf16::NAN; rows * N]).expect("memory");
        let x = TensorRef::new(stream, x.as_view(), [rows, K]).expect("x");
        let w = TensorRef::new(stream, w.as_view(), [N, K]).expect("w");
        let mut out = TensorMut::new(stream, y.slice_mut(..), [rows, N]).expect("y");
        product.launch(stream, &x, &w, &mut out).expect("launched");
        stream.cuda().clone_dtoh(&y).expect("copied")
    }

    fn exact(&self, row: usize, column: usize) -> f64 {
        let (x, w) = (&self.x[row * K..][..K], &self.w[column * K..][..K]);
        x.iter().zip(w).map(|(x, w)| f64::from(x.to_f32()) * f64::from(w.to_f32())).sum()
    }
}

#[test]
fn a_rows_product_has_the_same_bits_at_every_number_of_rows() {
    let test = "a_rows_product_has_the_same_bits_at_every_number_of_rows";
    let Some((device, _)) = testing::kernels_or_skip(test, "k26-tp8") else { return };
    check(&device);
}

fn check(device: &Device) {
    let stream = device.stream().expect("a stream");
    let product = Product::new(device, N, K, K, MOST).expect("a product");
    let operands = Operands::random();
    let whole = operands.multiply(&stream, &product, 0, ROWS);
    for at in (0..ROWS * N).step_by(ROWS * N / 97) {
        let (found, exact) = (f64::from(whole[at].to_f32()), operands.exact(at / N, at % N));
        assert!((found - exact).abs() <= exact.abs() / 256.0 + 1e-2, "{at}: {found}, not {exact}");
    }
    for rows in [1, 7, 128, 129, 256, 300, 512, 1000, 1024, 2048] {
        let first = ROWS - rows;
        let part = operands.multiply(&stream, &product, first, rows);
        let differs = part.iter().zip(&whole[first * N..]).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "of {rows} rows");
    }
}
