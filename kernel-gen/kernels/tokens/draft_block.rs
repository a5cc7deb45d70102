/// What the drafter is given for each of S streams: a block of its newest token and masks, at the positions from `starts[s]` on.
/// A stream with a negative start is padding, and has a block of masks at position 0.
family! { draft_block, template "tokens/draft_block.cuh";
  dims    { BLK = drafter_block }
  variant t128 { THREADS = 128 }
  args    { starts: i32[S], bonus: i32[S], mask: i32, ids: mut i32[S, BLK], positions: mut i32[S, BLK] }
  launch  { grid ceil_div(S * BLK, THREADS), block THREADS, pdl }
}
