//! What was measured, for people and for programs.

use serde_json::{Value, json};

/// One kind of work.
pub(crate) struct Row {
    pub(crate) size: usize,
    pub(crate) batch: usize,
    pub(crate) blocks: Vec<Block>,
    pub(crate) discarded: usize,
}

/// One measurement, ours and the other alternating, between two looks at the distance.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// Nanoseconds for one operation through the engine.
    pub(crate) engine: f64,
    /// Nanoseconds for the same copy by `memcpy`.
    pub(crate) memcpy: f64,
    /// The round trip of a cache line around it, in nanoseconds.
    pub(crate) round_trip: f64,
}

impl Row {
    /// The median of the blocks by the time of the engine.
    fn median(&self) -> Option<Block> {
        let mut blocks = self.blocks.clone();
        blocks.sort_by(|a, b| a.engine.total_cmp(&b.engine));
        blocks.get(blocks.len() / 2).copied()
    }

    fn best(&self, of: impl Fn(&Block) -> f64) -> f64 {
        self.blocks.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn print_header() {
        println!(
            "{:>8} {:>6} | {:>9} {:>9} {:>7} | {:>9} {:>7} | {:>7} {:>8} {:>6} | {:>7} {:>6}",
            "bytes",
            "batch",
            "ns",
            "best ns",
            "GB/s",
            "memcpy ns",
            "GB/s",
            "x speed",
            "x best",
            "x RTT",
            "RTT ns",
            "blocks"
        );
    }

    pub(crate) fn print(&self) {
        let Some(block) = self.median() else {
            println!("{:>8} {:>6} | the cores moved in all {} blocks", self.size, self.batch, self.discarded);
            return;
        };
        let rate = |ns: f64| self.size as f64 / ns;
        println!(
            "{:>8} {:>6} | {:>9.1} {:>9.1} {:>7.1} | {:>9.1} {:>7.1} | {:>7.2} {:>8.2} {:>6.2} | {:>7.0} {:>3}/{}",
            self.size,
            self.batch_name(),
            block.engine,
            self.best(|block| block.engine),
            rate(block.engine),
            block.memcpy,
            rate(block.memcpy),
            block.memcpy / block.engine,
            self.best(|block| block.memcpy) / self.best(|block| block.engine),
            block.engine / block.round_trip,
            block.round_trip,
            self.blocks.len(),
            self.blocks.len() + self.discarded,
        );
    }

    pub(crate) fn to_json(&self) -> Value {
        let median = self.median();
        json!({
            "bytes": self.size,
            "batch": self.batch,
            "depth_1": self.batch == 0,
            "engine_ns": median.map(|block| block.engine),
            "engine_best_ns": self.best(|block| block.engine),
            "memcpy_ns": median.map(|block| block.memcpy),
            "memcpy_best_ns": self.best(|block| block.memcpy),
            "speed_of_memcpy": median.map(|block| block.memcpy / block.engine),
            "round_trip_ns": median.map(|block| block.round_trip),
            "round_trips": median.map(|block| block.engine / block.round_trip),
            "blocks": self.blocks.len(),
            "blocks_discarded": self.discarded,
        })
    }

    fn batch_name(&self) -> String {
        if self.batch == 0 { "QD1".to_owned() } else { self.batch.to_string() }
    }
}
