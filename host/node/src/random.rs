//! Random numbers that differ between hosts, even if their machines are clones of each other.
//!
//! On two machines that were restored from one snapshot, the kernel's generator may have the same state. The seed
//! therefore also contains values that differ between hosts: the node, the machine, the process, and the clocks in
//! nanoseconds. If a host is cloned while it runs, both copies have the same state until their next draw. Each draw
//! mixes in the clocks, so the states then differ.

use baton_base::clock::nanoseconds_on;
use baton_election::Random;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use rustix::time::ClockId;
use sha2::{Digest as _, Sha256};

type State = [u8; 32];

/// Returns a random number generator for one elector of a node. The generator requests only a seed from the system, and
/// expands it with ChaCha, so later draws cannot fail.
pub fn random(node: &str) -> Result<Random, getrandom::Error> {
    let next = |state: &mut State| {
        *state = mix(state, &clocks());
        number(state)
    };
    Ok(Random { state: seed(node)?, next })
}

/// Returns a new incarnation: 16 hexadecimal digits, unique to this start of the host.
///
/// # Errors
/// If the system has no random numbers.
pub fn incarnation(node: &str) -> Result<String, getrandom::Error> {
    Ok(format!("{:016x}", number(&mut seed(node)?)))
}

fn seed(node: &str) -> Result<State, getrandom::Error> {
    let mut state = State::default();
    getrandom::fill(&mut state)?;
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let process = std::process::id().to_le_bytes();
    let rest = [node.as_bytes(), &machine, &process, &clocks()];
    Ok(rest.iter().fold(state, |state, part| mix(&state, part)))
}

fn clocks() -> [u8; 16] {
    let clocks = [ClockId::Realtime, ClockId::Boottime].map(nanoseconds_on);
    (u128::from(clocks[0]) << 64 | u128::from(clocks[1])).to_le_bytes()
}

/// Derives a new state from the previous one and `more`. The new state reveals neither of them.
fn mix(state: &State, more: &[u8]) -> State {
    Sha256::new_with_prefix(state).chain_update(more).finalize().into()
}

/// Draws the next number. The cipher's output also replaces the key, so the number reveals nothing about the state.
fn number(state: &mut State) -> u64 {
    let mut stream = ChaCha20Rng::from_seed(*state);
    stream.fill_bytes(state);
    stream.next_u64()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_match_the_chacha_test_vector() {
        // The first 40 bytes of the key stream for a key of zeros (RFC 8439, A.1, test vector 1). The first 32 bytes
        // are the next state, and the other 8 are the random number.
        let mut zero = State::default();
        assert_eq!(number(&mut zero), 0x8d48_5751_7c59_41da);
        assert_eq!(zero[..4], [0x76, 0xb8, 0xe0, 0xad]);
    }

    #[test]
    fn clones_of_a_generator_draw_different_numbers() {
        let mut original = random("alpha").unwrap();
        let mut clone = original;
        let numbers: BTreeSet<u64> = (0..1000).flat_map(|_| [original.number(), clone.number()]).collect();
        assert_eq!(numbers.len(), 2000);
    }

    #[test]
    fn hosts_with_the_same_system_random_bytes_have_different_seeds() {
        let state = State::default();
        assert_ne!(mix(&state, b"alpha"), mix(&state, b"beta"));
        assert_ne!(seed("alpha").unwrap(), seed("alpha").unwrap());
    }
}
