/// Follows the target's tokens down each of S trees for as long as they contain them, and says where what was accepted goes.
/// Stream `s` has the rows `firsts[s] .. firsts[s + 1]` of the pass, its root first, parents before children, at most 160;
/// `tokens` and `parents` (a row of the same stream, counted from its root; not read for a root) are those of the rows,
/// `chosen[m]` is the target's token after row `m`, and `committed[s]` tokens and room for more are in the pages `table[s]`.
///
/// Of each stream: the visited rows in order of depth, at most D of them (`rows`, of the pass), their positions, and the rows of
/// the pages that they go to (`slots`, 64 page + place), -1 behind them; their number, the token after the last (`bonus`), and
/// the tokens that are committed then (`next`). A stream without rows, or with a visited row whose `chosen` is negative
/// (it has no token), has no rows, bonus -1 and next -1.
family! { walk, template "tokens/walk.cuh";
  dims    { D = drafter_block }
  variant w4 { WARPS = 4 }
  const   { OWN = 5, THREADS = 32 * WARPS }
  require { D <= 32 }
  args    { tokens: i32[M], parents: i32[M], chosen: i32[M], firsts: i32[S + 1], committed: i32[S], table: i32[S, P],
            rows: mut i32[S, D], positions: mut i32[S, D], slots: mut i32[S, D], counts: mut i32[S], bonus: mut i32[S],
            next: mut i32[S] }
  launch  { grid ceil_div(S, WARPS), block THREADS, pdl }
}
