//! The draft tree: nodes in topological order and their ancestor masks.

/// Most nodes that one tree can hold: the bits of a two-word ancestor mask.
pub const MAX_NODES: usize = 128;

/// A node of a [`Tree`]: a drafted token after the path of its parent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Node {
    /// Token id.
    pub token: u32,
    /// Row of the parent, 0 for the root; always less than the node's own row.
    pub parent: u32,
    /// Number of drafted tokens on the path, 1 for a child of the root.
    pub depth: u32,
    /// Sum of the path's log-probabilities; 0 where the tree was given without any.
    pub score: f32,
    /// Bit i - 1 stands for row i; the node's own bit is set.
    mask: [u64; 2],
}

/// A draft tree of at most [`MAX_NODES`] nodes below an implicit root.
///
/// Row 0 is the root, row `i` is `nodes()[i - 1]`, and parents come before their children. Methods that take a
/// row panic, as indexing does, on one that is not in [`rows`](Tree::rows).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// The tree without nodes: plain decoding.
    pub const fn empty() -> Tree {
        Tree { nodes: Vec::new() }
    }

    /// The nodes, rows `1..=len()`.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Number of nodes; the root does not count.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All rows with the root: `0..=len()`. A verify pass has as many.
    pub fn rows(&self) -> std::ops::Range<usize> {
        0..self.len() + 1
    }

    /// Depth of a row, 0 for the root.
    pub fn depth(&self, row: usize) -> usize {
        if row == 0 { 0 } else { self.nodes[row - 1].depth as usize }
    }

    /// Score of a row, 0 for the root.
    pub fn score(&self, row: usize) -> f32 {
        if row == 0 { 0.0 } else { self.nodes[row - 1].score }
    }

    /// Depth of the deepest row.
    pub fn max_depth(&self) -> usize {
        self.nodes.iter().map(|n| n.depth as usize).max().unwrap_or(0)
    }

    /// Absolute positions of all rows when the root's token is at `start`: start + depth.
    pub fn positions(&self, start: usize) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.rows().map(move |row| start + self.depth(row))
    }

    /// The rows of a row's path in depth order, the root left out and the row itself last.
    pub fn path(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        // Parents precede children, so ascending bits are ascending depths.
        let [low, high] = self.mask(row);
        let mut bits = u128::from(high) << 64 | u128::from(low);
        std::iter::from_fn(move || {
            let next = (bits != 0).then(|| bits.trailing_zeros() as usize + 1);
            bits &= bits.wrapping_sub(1);
            next
        })
    }

    /// The tokens of a row's path in depth order, the root's left out.
    pub fn path_tokens(&self, row: usize) -> impl Iterator<Item = u32> + '_ {
        self.path(row).map(|row| self.nodes[row - 1].token)
    }

    /// The child of row `parent` with this token; the first one if the tree was given with several.
    pub fn child(&self, parent: usize, token: u32) -> Option<usize> {
        let later = &self.nodes[parent..];
        let found = later.iter().position(|n| n.parent as usize == parent && n.token == token)?;
        Some(parent + 1 + found)
    }

    /// The ancestor mask of a row: bit `i - 1` of the little-endian pair is set if row `i` is an ancestor of the
    /// row or the row itself. The root, an ancestor of all, has no bit; its own mask is 0.
    pub fn mask(&self, row: usize) -> [u64; 2] {
        if row == 0 { [0; 2] } else { self.nodes[row - 1].mask }
    }

    /// Number of u64 words that hold a mask of this tree: 1 up to 64 nodes, else 2.
    pub fn mask_width(&self) -> usize {
        if self.len() <= 64 { 1 } else { 2 }
    }

    /// [`mask`](Tree::mask) in [`mask_width`](Tree::mask_width) words.
    pub fn mask_words(&self, row: usize) -> &[u64] {
        const ROOT: [u64; 2] = [0; 2];
        let mask = if row == 0 { &ROOT } else { &self.nodes[row - 1].mask };
        &mask[..self.mask_width()]
    }

    /// Keeps the first `nodes` nodes. What is left is a tree, since parents come before children.
    pub fn truncate(&mut self, nodes: usize) {
        self.nodes.truncate(nodes);
    }

    /// Removes all nodes and keeps the room.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Appends a node and returns its row. The caller has checked that there is room.
    pub(crate) fn push(&mut self, parent: usize, token: u32, score: f32) -> usize {
        let bit = self.nodes.len();
        let (depth, mut mask) = match parent {
            0 => (1, [0; 2]),
            _ => (self.nodes[parent - 1].depth + 1, self.nodes[parent - 1].mask),
        };
        mask[bit / 64 % 2] |= 1 << (bit % 64);
        self.nodes.push(Node { token, parent: parent as u32, depth, score, mask });
        bit + 1
    }
}
