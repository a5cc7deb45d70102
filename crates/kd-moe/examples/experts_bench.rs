//! Times one layer of experts on device 0 and prints the table.
//!
//! `experts_bench PROFILE [OUT.json [PEERS.json [COMMIT [DATE]]]]`: `PROFILE` is `k26-tp1`, `k26-tp8` or another bundle with these kernels; beside
//! `OUT.json` it writes the plot, `OUT.svg`.

use std::path::Path;

use kd_kernels::selftest::units;
use kd_kernels::{Device, Kernels, Search};
use kd_moe::bench::{Options, ROWS, RoutingKind, peers, run, svg};
use kd_moe::gpu::Shape;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let profile =
        argument(0).ok_or("usage: experts_bench PROFILE [OUT.json [PEERS.json [COMMIT [DATE]]]]")?;
    let device = Device::open(0)?;
    let kernels = Kernels::open(&device, profile, &Search::standard())?;
    let unit = |family| units(&kernels, family).next().ok_or("this bundle has no experts");
    let (product, group) = (unit("moe_gate_up")?, unit("moe_group")?);
    let shape = Shape {
        hidden: product.dim("H")?.1,
        width: product.dim("I")?.1,
        experts: group.dim("E")?.1,
        top_k: group.dim("T")?.1,
    };
    let peers = argument(2).map(std::fs::read_to_string).transpose()?.map(|text| peers(&text)).transpose()?;
    let peers = peers.unwrap_or_default();
    let routing = RoutingKind::Uniform;
    let options = Options { rows: ROWS.to_vec(), routing, experts: None, replays: 15, seed: 1 };
    let report = run(&device, &kernels, shape, &options)?;
    print!("{}", report.table(&peers));
    if let Some(out) = argument(1) {
        let json = report.json(
            &format!("experts_bench {profile}"),
            argument(3).unwrap_or(""),
            argument(4).unwrap_or(""),
        );
        std::fs::write(out, serde_json::to_string_pretty(&json)? + "\n")?;
        std::fs::write(Path::new(out).with_extension("svg"), svg(&report, &peers))?;
    }
    Ok(())
}
