//! Random numbers without a dependency: splitmix64, both as a stream of numbers and as a hash function for decisions.

use std::time::Duration;

use baton_election::Random;

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The random numbers for one decision, which `parts` identifies. Equal parts always give the same numbers, so the
    /// order in which the simulation makes its decisions does not matter.
    pub fn about(parts: &[u64]) -> Self {
        let mut rng = Rng(0);
        for part in parts {
            rng.0 ^= *part;
            rng.0 = rng.number();
        }
        rng
    }

    /// Continues the stream as an elector's source of random numbers.
    pub fn for_elector(&self) -> Random {
        let mut state = [0; 32];
        state[..8].copy_from_slice(&self.0.to_le_bytes());
        let next = |state: &mut [u8; 32]| {
            let mut seed = [0; 8];
            seed.copy_from_slice(&state[..8]);
            let mut rng = Rng(u64::from_le_bytes(seed));
            let number = rng.number();
            state[..8].copy_from_slice(&rng.0.to_le_bytes());
            number
        };
        Random { state, next }
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit.max(1)
    }

    /// Returns true with a probability of `cases` ‰.
    pub fn per_mille(&mut self, cases: u64) -> bool {
        self.below(1000) < cases
    }

    /// A duration from `from` to `to`, in whole milliseconds, so that replays stay readable.
    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let (from, to) = (from.as_millis() as u64, to.as_millis() as u64);
        Duration::from_millis(from + self.below(to.saturating_sub(from) + 1))
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        self.between(Duration::from_millis(from), Duration::from_millis(to))
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
