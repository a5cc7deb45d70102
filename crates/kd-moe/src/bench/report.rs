//! What a benchmark of the experts found.

use kd_kernels::bench::median;
use serde_json::{Value, json};

use super::targets::{must, stretch};
use crate::gpu::Shape;

/// Times of one number of rows, microseconds a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Rows.
    pub rows: usize,
    /// Experts with rows, the mean over the routings.
    pub active: f64,
    /// Bytes of their weights.
    pub bytes: f64,
    /// Reading the bytes at the rate of this run.
    pub byte_floor: f64,
    /// Multiplying at the rate of this run.
    pub matrix_floor: f64,
    /// `expert_read` of the same experts, two launches.
    pub read: f64,
    /// The layer in the first graph after a pause.
    pub first: f64,
    /// The layer at steady state: one value a graph.
    pub layer: Vec<f64>,
    /// The form that ran.
    pub form: &'static str,
}

/// Share of the read rate from which `expert_read` is a floor.
const READS: f64 = 0.97;

/// What bounds a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regime {
    /// Bytes, and more rows read more experts.
    Streaming,
    /// Neither: within 1.15 of no floor.
    Transition,
    /// Bytes, and nearly all experts are read already: more rows cost little.
    Saturated,
    /// Products.
    Compute,
}

/// What most of a layer's time goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Launches, and latencies from one product to the next: reading alone takes much longer than its bytes.
    Latency,
    /// Weights: within a tenth of reading alone.
    Weights,
    /// Products: more than half of the time is what the tensor cores need.
    Products,
    /// Unpacking and the chain from memory to sum inside a warp: nothing else explains the time.
    Issue,
}

/// All of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// Device.
    pub device: String,
    /// The layer.
    pub shape: Shape,
    /// Experts of the profile: more than `shape.experts` if a slice was measured.
    pub profile_experts: usize,
    /// Name of the routing.
    pub routing: &'static str,
    /// Bytes a second that reading all experts reached.
    pub read_rate: f64,
    /// bf16 operations a second that `mma.sync` reached.
    pub matrix_rate: f64,
    /// By number of rows.
    pub rows: Vec<Row>,
}

/// Times of another implementation, from a file of the user.
#[derive(Debug, Clone, PartialEq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Rows and microseconds a layer.
    pub times: Vec<(usize, f64)>,
}

impl Row {
    /// Median of the steady state.
    pub fn median(&self) -> f64 {
        median(&self.layer)
    }

    /// Least and largest of the steady state.
    pub fn spread(&self) -> (f64, f64) {
        let fold = |start: f64, take: fn(f64, f64) -> f64| self.layer.iter().copied().fold(start, take);
        (fold(f64::INFINITY, f64::min), fold(f64::NEG_INFINITY, f64::max))
    }

    /// The larger floor.
    pub fn floor(&self) -> f64 {
        self.byte_floor.max(self.matrix_floor)
    }

    /// What bounds it, for a layer of `experts`.
    pub fn regime(&self, experts: usize) -> Regime {
        if self.matrix_floor > self.byte_floor {
            Regime::Compute
        } else if self.median() > 1.15 * self.byte_floor {
            Regime::Transition
        } else if self.active < 0.95 * experts as f64 {
            Regime::Streaming
        } else {
            Regime::Saturated
        }
    }

    /// What bounds it: a guess from the times of this run, where counters would know.
    pub fn bound(&self) -> Bound {
        if self.read > 1.3 * self.byte_floor {
            Bound::Latency
        } else if self.median() <= 1.1 * self.read {
            Bound::Weights
        } else if self.matrix_floor > 0.5 * self.median() {
            Bound::Products
        } else {
            Bound::Issue
        }
    }

    /// Microseconds that writing and reading the f32 parts of down would take at `read_rate`, if all went to memory.
    pub fn parts(&self, shape: &Shape, read_rate: f64) -> f64 {
        (2 * self.rows * shape.top_k * shape.hidden * size_of::<f32>()) as f64 / read_rate * 1e6
    }

    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes / self.median() * 1e6
    }
}

/// The number of rows from which another row costs less than a tenth of what the first cost.
pub fn knee(rows: &[Row]) -> Option<usize> {
    let first = rows.first()?;
    let alone = first.median() / first.rows as f64;
    let cheap = |pair: &&[Row]| {
        let (time, more) = (pair[1].median() - pair[0].median(), pair[1].rows as f64 - pair[0].rows as f64);
        time / more < 0.1 * alone
    };
    rows.windows(2).find(cheap).map(|pair| pair[0].rows)
}

impl Report {
    /// Whether only a slice of the layer was measured.
    pub fn partial(&self) -> bool {
        self.shape.experts < self.profile_experts
    }

    /// What a record of the run holds beside its command and machine.
    pub fn fields(&self, peers: &[Peer]) -> Vec<(&'static str, Value)> {
        let Shape { hidden, width, experts, top_k } = self.shape;
        let row = |row: &Row| {
            let (least, most) = row.spread();
            json!({
                "rows": row.rows, "active_experts": row.active, "bytes": row.bytes, "form": row.form,
                "byte_floor_us": row.byte_floor, "matrix_floor_us": row.matrix_floor, "expert_read_us": row.read,
                "first_us": row.first, "median_us": row.median(), "min_us": least, "max_us": most,
                "samples_us": row.layer, "over_floor": row.median() / row.floor(),
                "us_per_token": row.median() / row.rows as f64, "bytes_per_second": row.rate(),
                "regime": format!("{:?}", row.regime(experts)).to_lowercase(),
                "bound": format!("{:?}", row.bound()).to_lowercase(), "parts_us": row.parts(&self.shape, self.read_rate),
                "read_share": row.byte_floor / row.read, "stretch_us": self.stretch(row), "must_us": must(peers, row.rows),
            })
        };
        vec![
            ("routing", self.routing.into()),
            ("shape", json!({ "hidden": hidden, "width": width, "experts": experts, "top_k": top_k })),
            ("partial", self.partial().into()),
            ("profile_experts", self.profile_experts.into()),
            ("working_set_bytes", self.shape.weight_bytes().unwrap_or_default().into()),
            ("read_bytes_per_second", self.read_rate.into()),
            ("matrix_flop_per_second", self.matrix_rate.into()),
            ("knee_rows", knee(&self.rows).into()),
            ("rows", self.rows.iter().map(row).collect()),
        ]
    }

    /// Microseconds of the target, at the floor of this run.
    fn stretch(&self, row: &Row) -> Option<f64> {
        stretch(&self.shape, row.rows).map(|ratio| ratio * row.byte_floor)
    }

    /// The table for people.
    pub fn table(&self, peers: &[Peer]) -> String {
        let Shape { hidden, width, experts, .. } = self.shape;
        let mut text = format!(
            "{}: {experts} experts of {hidden} x {width}{}, {} routing; reads {:.2} TB/s, mma.sync {:.0} TFLOP/s\n",
            self.device,
            if self.partial() {
                format!(" (PARTIAL: the profile has {})", self.profile_experts)
            } else {
                String::new()
            },
            self.routing,
            self.read_rate / 1e12,
            self.matrix_rate / 1e12,
        );
        text += "   rows  active      MB    floor     read    first   median     min..max    /floor  us/row   TB/s  form    regime      bound     parts  stretch";
        text += if peers.is_empty() { "" } else { "     must" };
        peers.iter().for_each(|peer| text += &format!("  {:>12}", peer.name));
        for row in &self.rows {
            let ((least, most), median) = (row.spread(), row.median());
            text += &format!(
                "\n{:>7} {:>7.1} {:>7.0} {:>8.1} {:>8.1}{} {:>7.1} {:>8.1} {:>6.0}..{:<6.0} {:>6.2} {:>8.2} {:>6.2}  {:<6}  {:<10}  {:<8} {:>6.0} {:>8}",
                row.rows,
                row.active,
                row.bytes / 1e6,
                row.floor(),
                row.read,
                if row.byte_floor >= READS * row.read { "*" } else { " " },
                row.first,
                median,
                least,
                most,
                median / row.floor(),
                median / row.rows as f64,
                row.rate() / 1e12,
                row.form,
                format!("{:?}", row.regime(experts)).to_lowercase(),
                format!("{:?}", row.bound()).to_lowercase(),
                row.parts(&self.shape, self.read_rate),
                passed(self.stretch(row), median),
            );
            if !peers.is_empty() {
                text += &format!(" {:>8}", passed(must(peers, row.rows), median));
            }
            for peer in peers {
                let time = peer.times.iter().find(|(rows, _)| *rows == row.rows);
                let cell = time.map_or_else(String::new, |(_, time)| format!("{:.2}x", time / median));
                text += &format!("  {cell:>12}");
            }
        }
        if let Some(knee) = knee(&self.rows) {
            text +=
                &format!("\nknee at {knee} rows: from there a row costs less than a tenth of a row alone");
        }
        text += "\n*: expert_read reaches 0.97 of the read rate and is a floor; parts: what the f32 parts of down take if all go to memory; !: missed";
        if self.partial() {
            let scale = self.profile_experts as f64 / experts as f64;
            text += &format!(
                "\npartial: a whole layer with the same load an expert is estimated at {scale:.1} times a row's time at {scale:.1} times its rows"
            );
        }
        text + "\n"
    }
}

/// A limit, with a mark where `time` is over it.
fn passed(limit: Option<f64>, time: f64) -> String {
    limit.map_or_else(|| "-".to_owned(), |limit| format!("{limit:.0}{}", if time > limit { "!" } else { "" }))
}

/// Peers from JSON: an object of objects, `{"name": {"rows": microseconds}}`.
///
/// # Errors
/// Text of another form, with the place.
pub fn peers(text: &str) -> Result<Vec<Peer>, serde_json::Error> {
    use std::collections::BTreeMap;
    let parsed: BTreeMap<String, BTreeMap<usize, f64>> = serde_json::from_str(text)?;
    Ok(parsed.into_iter().map(|(name, times)| Peer { name, times: times.into_iter().collect() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rows: usize, active: f64, time: f64, byte_floor: f64, matrix_floor: f64) -> Row {
        let layer = vec![time * 0.9, time, time * 1.2];
        Row {
            rows,
            active,
            bytes: 1e9,
            byte_floor,
            matrix_floor,
            read: byte_floor,
            first: time,
            layer,
            form: "wide",
        }
    }

    #[test]
    fn regimes_and_the_knee_follow_from_times() {
        let rows = [
            row(1, 8.0, 50.0, 45.0, 1.0),
            row(64, 284.0, 1700.0, 1600.0, 60.0),
            row(264, 382.0, 2300.0, 2100.0, 240.0),
            row(512, 384.0, 2600.0, 2120.0, 470.0),
            row(4096, 384.0, 6000.0, 2120.0, 3700.0),
        ];
        let regimes: Vec<Regime> = rows.iter().map(|row| row.regime(384)).collect();
        use Regime::{Compute, Saturated, Streaming, Transition};
        assert_eq!(regimes, [Streaming, Streaming, Saturated, Transition, Compute]);
        assert_eq!(knee(&rows), Some(64));
        use Bound::{Issue, Products, Weights};
        let bounds: Vec<Bound> = rows.iter().map(Row::bound).collect();
        assert_eq!(bounds, [Issue, Weights, Weights, Issue, Products]);
        assert_eq!(Row { read: 90.0, ..rows[0].clone() }.bound(), Bound::Latency);
        assert_eq!(rows[1].median(), 1700.0);
    }

    #[test]
    fn a_peer_file_is_read_or_refused() {
        let found = peers(r#"{"other": {"64": 2128.0, "1": 73.9}}"#).expect("peers");
        assert_eq!(found, [Peer { name: "other".to_owned(), times: vec![(1, 73.9), (64, 2128.0)] }]);
        assert!(peers(r#"{"other": {"x": 1}}"#).is_err());
    }
}
