/// Reads the weights of the experts with rows and nothing more: the practical floor of a product that must read them. `w` holds
/// `E` experts; `found` is written only if a checksum hits one value, so that nothing is left out.
family! { expert_read, template "bench/expert_read.cuh";
  dims    { H = hidden }
  variant v4 { THREADS = 512, EACH = 4 }
  require { H % 4 == 0 }
  args    { w: u32[V, H], plan: i32[2], entries: i32[E, 4], found: mut u32[1] }
  launch  { grid resident, block THREADS, min_ctas 2, pdl }
}
