//! Test cases for the promises of a store on which the elector and the coordinators depend: [`CHECKS`].
//!
//! `baton doctor` runs some of the cases on a user's store: the cases that need only one unused election
//! ([`Run::AtOnce`] and [`Run::AfterExpiry`]). With the feature `conformance`, authors of stores can run all cases in
//! their tests, each on a separate store. Their store implements [`LeaseStore`](crate::LeaseStore),
//! [`ObjectStore`](crate::ObjectStore) and [`OperatorStore`](crate::OperatorStore), and `suite::run` panics with the
//! findings. A `suite::Backend` defines how an operator breaks a lease and how time passes. See
//! `examples/own_backend.rs`.
#![cfg_attr(feature = "conformance", allow(clippy::unwrap_used, reason = "the cases' own names are valid"))]

mod bench;
#[cfg(feature = "conformance")]
mod leases;
mod live;
#[cfg(feature = "conformance")]
mod modules;
#[cfg(feature = "conformance")]
pub mod suite;
#[cfg(feature = "conformance")]
mod terms;
#[cfg(feature = "conformance")]
mod versioned;

use std::pin::Pin;
use std::sync::Arc;

pub use bench::{Bench, Expect, Finding, LeaseEnd, Passage, Seen, Verdict};
pub use live::NODE;
#[cfg(feature = "conformance")]
use suite::StoreBench;

/// A group of cases. The report of `baton doctor` has a line for each group of which it can run at least one case.
pub struct Check {
    /// Name of the group.
    pub name: &'static str,
    /// The consequence for users if a store fails a case.
    pub means: &'static str,
    /// The cases.
    pub cases: &'static [Case],
}

/// One case.
pub struct Case {
    /// Name of the case.
    pub name: &'static str,
    /// The promise that the case tests, in words, for the report of `baton doctor`.
    pub proves: &'static str,
    /// The code of the case, and what it needs.
    pub run: Run,
}

/// A running case, which resolves to its verdict.
pub type Running = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// The code of a case.
#[derive(Clone, Copy)]
pub enum Run {
    /// Needs one election.
    AtOnce(fn(Arc<Bench>) -> Running),
    /// Needs one election, and waits for its lease to expire.
    AfterExpiry(fn(Arc<Bench>) -> Running),
    /// Needs a store that no other case uses, because the case may delete the store's records.
    #[cfg(feature = "conformance")]
    OnOwnStore(fn(StoreBench) -> Running),
}

macro_rules! checks {
    ($(
        $check:literal, $means:literal {
            $($kind:ident: $module:ident::$case:ident, $proves:literal;)*
            $(@store: $($own_module:ident::$own:ident),+;)?
        }
    )*) => {
        /// All cases.
        pub const CHECKS: &[Check] = &[$(Check {
            name: $check,
            means: $means,
            cases: &[
                $(Case { name: stringify!($case), proves: $proves, run: Run::$kind(|bench| Box::pin($module::$case(bench))) },)*
                $($(
                    #[cfg(feature = "conformance")]
                    Case { name: stringify!($own), proves: "", run: Run::OnOwnStore(|bench| Box::pin($own_module::$own(bench))) },
                )+)?
            ],
        }),*];
    };
}

checks! {
    "lease-kept", "a leader would lose its term although nothing failed, and another node could lead at the same time" {
        AtOnce: live::acquired_lease_is_kept_and_renewed, "the holder keeps the lease and can renew it";
        @store: leases::renewal_restarts_the_lease, leases::renewal_of_an_untouched_expired_lease_succeeds;
    }
    "lease-exclusive", "two nodes could lead at once" {
        AtOnce: live::held_lease_is_refused_to_another_id, "while one id holds the lease, the store refuses another id";
        @store: suite::one_of_many_candidates_wins;
    }
    "lease-own-id", "a node that did not receive the store's response could not find out that it is the leader" {
        AtOnce: live::acquire_is_idempotent_for_its_id, "the holder can acquire the lease again with its own id";
        @store: leases::lost_answer_is_recovered_by_repeating_the_request;
    }
    "lease-wrong-id", "a former leader could renew or end its successor's lease" {
        AtOnce: live::renewal_and_release_with_a_wrong_id_are_lost,
            "an id that does not hold the lease can neither renew nor release it";
        @store: leases::late_requests_do_no_harm;
    }
    "lease-reclaim", "a host that only seems dead would keep leading next to the host that reclaims its lease" {
        AtOnce: live::reclaimed_lease_has_an_id_unknown_to_the_old_holder,
            "a lease whose id was changed can be renewed only under the new id";
        @store: leases::reclaim_restarts_the_lease, leases::reclaim_is_lost_when_the_lease_ended_or_changed_hands;
    }
    "lease-release", "a hand-off would take one full lease duration, or a former leader could lead again" {
        AtOnce: live::release_frees_the_lease_at_once, "a release frees the lease at once and invalidates its id";
    }
    "lease-break", "an operator could not break a lease, or its holder would keep leading" {
        AtOnce: live::host_breaks_a_lease_without_its_id,
            "a break ends the lease at once, and another id can acquire it";
        @store: leases::lease_broken_at_once_is_free_for_others, leases::breaking_lease_is_free_after_the_period,
            leases::break_of_an_expired_lease_takes_effect_at_once, leases::break_of_a_broken_lease_changes_nothing,
            leases::second_break_never_takes_longer;
    }
    "create-once", "two nodes could both create one election, and a term number could repeat" {
        AtOnce: live::record_is_created_once, "a record that exists is not created again (If-None-Match)";
        @store: suite::one_of_many_creators_succeeds;
    }
    "acquire-version", "a node could lead on a record that it has not read, and a term number could repeat" {
        AtOnce: live::acquire_on_an_old_version_conflicts,
            "a lease can be acquired only at the version that was read (If-Match)";
        @store: leases::lease_requests_leave_the_version_alone, leases::deleted_record_leaves_nothing_behind;
    }
    "write-lease", "a node that does not lead could begin a term, and term numbers could fall" {
        AtOnce: live::write_needs_the_id, "only the lease's holder can write the record";
        AtOnce: live::overwrite_is_lost_while_the_lease_is_held,
            "while an id holds the lease, other clients cannot replace the record";
        @store: leases::client_without_an_id_changes_only_what_is_not_held;
    }
    "write-version", "a delayed write could undo a newer one, and a term number could repeat" {
        AtOnce: live::write_needs_the_version, "a write over a replaced version is refused (If-Match)";
        @store: leases::write_changes_the_version, suite::record_is_read_as_it_was_written;
    }
    "object-version", "a former leader could overwrite the state of its successor, and a push could undo another" {
        AtOnce: live::object_is_written_only_at_its_version,
            "an object is created once, and replaced only at the version that was read";
        @store: versioned::object_is_absent_until_written, versioned::one_of_many_writers_succeeds_in_each_round,
            versioned::large_object_is_kept_whole, versioned::versions_are_never_reused,
            versioned::object_is_deleted_only_if_unchanged, versioned::elections_and_objects_are_separate;
    }
    "announcements", "a node that takes over would not learn the highest term that other nodes have seen" {
        AtOnce: live::announcement_is_kept_and_listed, "announcements are kept and listed";
        @store: modules::nodes_announce_and_withdraw, modules::elections_are_separate,
            modules::any_node_id_has_its_own_announcement;
    }
    "removal", "removed objects would come back" {
        AtOnce: live::announcement_is_removed, "an object can be removed";
    }
    "lease-length", "two nodes could lead at once if a lease ends early; no node could lead if it ends late or never" {
        AfterExpiry: live::renewed_lease_lasts_for_its_length, "a lease lasts for its length after a renewal";
        @store: leases::lease_expires_sooner_when_reacquired_for_less_time,
            leases::lease_is_refused_when_its_length_is_out_of_range;
    }
    "lease-taken-over", "a former leader could end its successor's term, or overwrite its record" {
        AfterExpiry: live::late_requests_are_lost_when_another_has_acquired,
            "the former holder can neither renew nor release the lease, nor write the record";
    }
    "lease-expired", "a delayed leader could begin a term while another leader's term runs" {
        AfterExpiry: live::expired_lease_refuses_writes_and_other_ids,
            "under an expired lease, the record cannot be written, and another id cannot renew the lease";
    }
    "terms", "a term number could repeat" {
        @store: suite::elections_are_listed_sorted, terms::mark_stays_until_a_write_without_it,
            terms::recreated_record_has_no_mark, terms::recall_names_the_highest_term_in_the_store,
            terms::recall_merges_progress_of_record_and_announcements,
            terms::recall_fails_when_the_state_is_unreadable;
    }
    "modules", "a node could run a module other than the one that was pushed, or none" {
        @store: modules::first_content_of_a_module_is_kept, modules::module_is_read_only_up_to_the_limit,
            modules::large_module_is_kept_whole, modules::concurrent_puts_of_a_module_all_succeed,
            modules::modules_are_listed_by_digest_and_removed, modules::module_put_again_is_not_removed_as_old;
    }
}
