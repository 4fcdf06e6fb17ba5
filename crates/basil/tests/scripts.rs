//! Basil told in scripts: what the paper and `docs` say, tried on real replicas and coordinators. See `harness`.

mod harness;

/// §5 against chance: messages come late, twice or never, replicas crash, one of them lies when it leads.
#[test]
fn elections_end_alike_for_all_whatever_happens() {
    for seed in 0..40 {
        harness::chance::elect(seed);
    }
}

macro_rules! scripts {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                harness::play(stringify!($name));
            }
        )*

        #[test]
        fn every_script_is_played() {
            let mut listed = vec![$(stringify!($name)),*];
            listed.sort_unstable();
            assert_eq!(listed, harness::names());
        }
    };
}

scripts! {
    a_certificate_verifies_offline
    a_chain_of_abandoned_transactions_is_finished
    a_client_finishes_the_stalled_transaction_in_its_way
    a_client_reads_its_own_commit_before_it_is_relayed
    a_commit_of_two_shards_is_relayed_by_2f_plus_1_replicas
    a_commit_stated_by_one_replica_is_not_taken_over
    a_conflict_proof_is_hidden_from_a_waiting_client
    a_conflict_proof_is_hidden_without_permission
    a_decision_logged_by_4f_plus_1_wins_every_election
    a_decision_of_an_earlier_view_is_ignored
    a_dependency_below_the_checkpoint_is_voted_down
    a_dependency_of_another_version_is_voted_down
    a_dependency_that_does_not_write_the_key_is_voted_down
    a_dependency_that_has_committed_is_not_waited_for
    a_fabricated_writer_is_not_read
    a_guessed_transaction_is_refused_without_permission
    a_hidden_transaction_in_the_way_is_finished_at_once
    a_hidden_write_prevents_validation
    a_late_author_gets_a_vote_on_a_transaction_brought_by_another
    a_late_refusal_does_not_end_a_commit
    a_leader_that_crashes_before_its_decision_is_durable_is_elected_again
    a_logged_decision_survives_a_crash
    a_prepared_transaction_survives_a_crash
    a_read_above_its_own_timestamp_is_proof_of_misbehavior
    a_read_above_the_time_bound_is_refused
    a_read_asks_all_replicas_when_too_few_agree
    a_read_only_transaction_commits_without_votes
    a_read_only_transaction_of_its_own_recent_commit_needs_no_votes
    a_read_only_transaction_with_a_concurrent_writer_is_prepared
    a_read_that_missed_a_committed_write_is_voted_down
    a_read_that_missed_a_prepared_write_is_voted_down
    a_reader_ahead_of_time_does_not_abort_a_writer
    a_reader_finishes_the_writer_it_depends_on
    a_released_orphan_is_finished_by_another_shard
    a_remembered_outcome_is_logged_on_request
    a_repeated_prepare_gets_the_same_vote
    a_replica_cut_off_past_the_window_still_votes
    a_replica_takes_over_what_it_missed_while_it_was_away
    a_replica_that_hides_a_prepared_write_validates_no_read
    a_replica_that_missed_a_commit_learns_of_it_within_seconds
    a_replica_that_never_voted_votes_for_a_known_outcome
    a_replica_without_a_decision_logs_before_it_elects
    a_restarted_replica_votes_down_writes_below_the_write_floor
    a_resurrected_transaction_gets_no_vote
    a_shard_that_is_not_the_logging_shard_refuses_to_log
    a_silent_leader_costs_one_view
    a_slow_commit_is_logged_on_the_logging_shard_only
    a_status_reply_binds_after_the_clock_is_set_back
    a_timestamp_above_the_time_bound_is_refused
    a_timestamp_below_the_window_is_refused
    a_transaction_half_of_the_replicas_never_saw_aborts_after_an_outage
    a_transaction_older_than_half_the_window_is_voted_down
    a_validated_read_is_protected_after_a_crash
    a_version_hidden_by_one_replica_is_read
    a_version_invented_by_one_replica_is_not_read
    a_version_shown_by_one_replica_is_not_taken_over
    a_vote_survives_a_crash
    a_vote_that_was_not_durable_was_not_sent
    a_vote_waits_until_its_dependency_commits
    a_vote_waits_until_the_clock_has_reached_the_timestamp
    a_write_below_a_committed_read_is_voted_down
    a_write_below_a_prepared_read_is_voted_down
    a_write_below_a_read_timestamp_is_voted_down
    abort_fast_path_with_3f_plus_1_votes
    abort_fast_path_with_a_committed_conflict
    abort_slow_path_with_f_plus_1_votes
    abort_votes_are_no_evidence_of_authorship
    after_a_restart_nobody_is_charged_for_what_others_brought
    an_abort_in_one_shard_aborts_in_all
    an_aborted_dependency_aborts_its_readers
    an_acknowledged_commit_outlives_its_journal_segment
    an_acknowledged_commit_survives_a_power_cut
    an_author_reads_its_own_write_without_permission_to_all_of_it
    an_author_sends_its_proof_to_all_when_the_relays_fail
    an_election_survives_a_crash
    an_equivocated_decision_is_reconciled
    an_equivocating_leader_costs_one_view
    an_impersonated_transaction_is_voted_down
    an_invented_write_does_not_prevent_validation
    an_orphan_aborts_as_the_tombstones_say
    an_orphan_aborts_when_f_plus_1_remember_the_abort
    an_orphan_is_released_when_newer_versions_are_known
    an_orphan_is_released_with_the_newer_version
    an_orphan_is_voted_down_by_replicas_that_never_saw_it
    an_outcome_is_logged_again_after_its_certificate_expired
    an_outcome_whose_proof_is_hidden_is_logged
    an_outcome_without_a_vote_survives_a_crash
    an_unauthorized_read_is_refused
    an_unauthorized_write_is_voted_down
    an_undecided_transaction_keeps_its_view_past_the_window
    an_undecided_vote_outlives_its_journal_segment
    an_undeclared_read_only_transaction_validates_at_commit
    an_unknown_dependency_is_voted_down
    an_unrelated_conflict_is_not_believed
    an_unrelayed_commit_is_finished_by_the_janitors
    commit_fast_path_with_5f_plus_1_votes
    commit_slow_path_with_3f_plus_1_votes
    early_fallback_calls_do_not_skip_a_leader
    evidence_admits_a_transaction_older_than_half_the_window
    f_plus_1_commit_notices_are_enough
    f_plus_1_commit_votes_are_evidence_of_authorship
    isolation_g0_no_dirty_write
    isolation_g1a_no_aborted_read
    isolation_g1b_no_intermediate_read
    isolation_g1c_colluding_clients_abort
    isolation_g1c_no_circular_information_flow
    isolation_g2_item_no_write_skew
    isolation_g2_no_write_skew_on_absent_keys
    isolation_g_single_no_read_skew
    isolation_g_single_no_read_skew_past_a_lagging_read
    isolation_no_fuzzy_read
    isolation_no_long_fork
    isolation_p4_no_lost_update
    late_replies_of_an_earlier_round_validate_a_read
    liars_leave_room_in_the_undecided_table
    one_byzantine_replica_cannot_abort
    one_byzantine_replica_cannot_commit
    one_commit_notice_is_not_believed
    one_refusal_does_not_fail_a_read
    one_remembered_outcome_does_not_conclude_an_orphan
    one_silent_replica_forces_the_slow_path
    one_status_reply_does_not_release_an_orphan
    one_vote_is_no_evidence_of_authorship
    only_the_logging_shard_elects
    prepared_writes_can_be_read
    replicas_finish_an_abandoned_transaction_in_rank_order
    replicas_that_never_saw_a_transaction_log_its_decision
    replies_of_an_earlier_round_still_count
    statements_on_a_released_orphan_survive_a_crash
    the_fast_path_wait_follows_the_logging_round_trip
    the_janitor_aborts_a_transaction_prepared_at_one_replica
    the_janitor_finishes_an_abandoned_transaction
    the_janitors_reconcile_an_abandoned_equivocation
    the_nearest_replicas_are_asked_first
    the_next_rank_replaces_a_replica_that_is_down
    the_read_ceiling_outlives_its_journal_segment
    timeouts_follow_the_round_trip
    two_honest_finishers_that_disagree_are_reconciled
    two_shards_commit_in_one_round_trip
    two_transactions_with_one_timestamp_do_not_both_commit
    undecided_transactions_are_bounded_per_replica_and_per_client
    undecided_work_counts_against_its_sender
    what_liars_made_up_leaves_room_for_others
    what_silent_turns_wrote_is_lost_with_the_power_and_learned_again
    writeback_brings_the_transaction_to_a_replica_that_missed_it
}
