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
    a_certificate_reaches_who_missed_the_transaction
    a_chain_of_what_was_left_is_taken_apart
    a_claim_about_folded_times_harms_nobody
    a_client_cannot_read_what_it_may_not
    a_client_cannot_write_what_it_may_not
    a_client_reads_what_it_has_just_committed
    a_decision_of_a_view_that_was_left_comes_too_late
    a_dependency_of_another_version_is_voted_down
    a_dependency_that_aborts_takes_its_readers_along
    a_dependency_that_does_not_write_the_key_is_voted_down
    a_dependency_that_has_committed_is_not_waited_for
    a_fabricated_writer_does_not_pass_for_a_real_one
    a_leader_that_dies_deciding_has_said_nothing
    a_leader_that_says_two_things_costs_one_more_view
    a_liar_alone_aborts_nobody
    a_liar_alone_commits_nothing
    a_liar_cannot_say_what_is_in_the_way
    a_liar_that_hides_a_write_settles_nothing
    a_liar_that_names_a_write_unsettles_nothing
    a_logged_decision_survives_a_crash
    a_prepared_transaction_is_prepared_after_a_crash
    a_reader_finishes_the_writer_it_depends_on
    a_reader_from_the_future_is_refused
    a_reader_that_meets_a_writer_is_prepared
    a_receipt_convinces_a_stranger
    a_second_request_gets_the_same_vote
    a_silent_leader_costs_one_more_view
    a_silent_replica_costs_a_second_round_trip
    a_timestamp_too_far_ahead_is_not_voted_on
    a_transaction_is_finished_where_its_author_may_no_longer_begin
    a_version_that_one_liar_hides_is_read
    a_version_that_one_liar_invents_is_not_read
    a_view_outlasts_the_window
    a_vote_survives_a_crash
    a_vote_waits_until_its_dependency_commits
    a_write_that_may_not_be_shown_unsettles_a_read
    a_write_under_a_committed_read_is_voted_down
    a_write_under_a_prepared_read_is_voted_down
    a_write_under_a_read_timestamp_is_voted_down
    after_a_restart_nothing_is_written_below_the_floor
    an_author_reads_what_it_wrote_beside_what_it_may_not_read
    an_author_shows_all_what_it_waits_for_itself
    an_election_survives_a_crash
    an_end_is_found_again_when_its_proof_is_gone
    an_end_is_found_again_with_the_help_of_those_who_never_voted
    an_end_that_may_not_be_shown_is_logged
    an_equivocated_decision_is_reconciled
    an_unknown_dependency_is_voted_down
    everybody_is_asked_when_too_few_agree
    four_of_six_votes_to_commit_must_be_logged
    four_votes_to_abort_are_enough
    isolation_g0_no_dirty_write
    isolation_g1a_no_aborted_read
    isolation_g1b_no_intermediate_read
    isolation_g1c_claims_of_a_circle_end_in_abort
    isolation_g1c_no_circular_information_flow
    isolation_g2_item_no_write_skew
    isolation_g2_no_write_skew_on_absent_keys
    isolation_g_single_no_read_skew
    isolation_g_single_no_read_skew_past_a_lagging_read
    isolation_no_fuzzy_read
    isolation_no_long_fork
    isolation_p4_no_lost_update
    late_replies_of_an_earlier_round_settle_a_read
    missing_a_committed_write_is_voted_down
    missing_a_prepared_write_is_voted_down
    nobody_commits_in_anothers_name
    nobody_learns_by_guessing_what_it_may_not_read
    nothing_is_written_under_a_settled_read_after_a_crash
    one_replicas_refusal_ends_no_read
    one_shards_abort_ends_it_everywhere
    one_slow_shard_is_logged_on_one_shard_only
    one_vote_does_not_show_who_the_author_is
    one_vote_to_abort_with_a_committed_conflict_is_enough
    only_the_logging_shard_elects
    prepared_writes_can_be_read
    reading_from_ones_own_future_is_proof_of_a_lie
    replicas_take_turns_to_finish_what_was_left
    six_votes_to_commit_are_enough
    the_author_may_come_after_the_finisher
    the_janitor_ends_what_too_few_were_sent
    the_janitor_finishes_what_nobody_meets
    the_janitors_reconcile_what_nobody_meets
    the_last_vote_is_worth_as_long_as_logging_takes
    the_nearest_replicas_are_asked_first
    the_next_takes_the_turn_of_who_is_down
    the_other_shard_does_not_log
    the_proof_of_a_conflict_is_not_shown_to_who_may_not_read_it
    there_is_room_for_so_much_and_no_more
    three_tell_the_others_of_a_commit
    two_shards_commit_in_one_round_trip
    two_transactions_cannot_have_one_timestamp
    two_votes_to_abort_must_be_logged
    two_who_disagree_are_reconciled
    two_who_tell_of_a_commit_are_enough
    votes_against_a_stranger_show_no_author
    votes_of_f_plus_1_show_who_the_author_is
    what_aborted_and_was_forgotten_is_laid_to_rest
    what_five_have_logged_wins_every_election
    what_half_never_saw_ends_after_a_long_power_cut
    what_is_far_away_is_given_the_time_it_takes
    what_is_too_old_is_refused
    what_is_undecided_outlives_the_journals_old_part
    what_its_author_brings_too_late_never_commits
    what_most_hold_ends_as_those_remember_who_have_forgotten_it
    what_most_hold_is_logged_by_those_who_never_saw_it
    what_silent_turns_wrote_is_lost_with_the_power_and_learned_again
    what_the_others_have_forgotten_is_laid_to_rest
    what_the_others_never_saw_is_voted_down
    what_was_forgotten_and_comes_back_is_not_voted_on
    what_was_not_durable_was_not_said
    what_was_readable_outlives_the_journals_old_part
    what_was_said_in_an_earlier_round_still_counts
    what_was_to_be_passed_on_is_finished_by_others
    whatever_was_acknowledged_outlives_the_journals_old_part
    whatever_was_acknowledged_survives_a_power_cut
    who_ends_what_others_remember_believes_no_single_replica
    who_has_let_go_does_not_vote_when_its_clock_is_set_back
    who_has_logged_nothing_logs_before_it_elects
    who_is_told_of_a_commit_believes_no_single_replica
    who_lays_to_rest_believes_no_single_replica
    who_lays_to_rest_takes_over_what_is_newer
    who_learns_the_end_alone_keeps_it_after_a_crash
    who_only_reads_commits_without_a_vote
    who_only_reads_its_own_fresh_commit_needs_no_vote
    who_reads_without_saying_so_asks_the_others_at_commit
    who_remembers_an_end_logs_it
    who_was_cut_off_counts_where_a_liar_is_silent
    whoever_brings_work_pays_for_it
    whoever_hurries_passes_no_leader
    whoever_is_stopped_by_a_stalled_transaction_finishes_it
    whoever_refuses_late_may_have_voted
    whoever_waits_is_not_shown_the_proof_of_a_conflict_either
}
