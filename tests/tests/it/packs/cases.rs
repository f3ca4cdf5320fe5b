//! The acceptance cases of packs, P-1 to P-60 (`spec/python-packs.md`, section 7), and the tests that show them. A test of
//! `torch` needs a Python that has torch, which `FRESCO_TEST_PYTHON` names; those with pictures need numpy, those with routes
//! aiohttp. Where these are missing they are skipped with a line.
//!
//! | Case | Tests |
//! |---|---|
//! | P-1 | two_roots_equal_names_and_scripts_that_fail |
//! | P-2 | packs_load_each_in_its_way_and_failures_stay_where_they_are |
//! | P-3 | packs_load_each_in_its_way_and_failures_stay_where_they_are |
//! | P-4 | packs_load_each_in_its_way_and_failures_stay_where_they_are |
//! | P-5 | packs_load_each_in_its_way_and_failures_stay_where_they_are |
//! | P-6 | two_roots_equal_names_and_scripts_that_fail |
//! | P-7 | types_of_packs_decide_what_may_be_linked |
//! | P-8 | flags_choose_packs |
//! | P-9 | packs_load_each_in_its_way_and_failures_stay_where_they_are |
//! | P-10 | two_roots_equal_names_and_scripts_that_fail |
//! | P-11 | packs_load_each_in_its_way_and_failures_stay_where_they_are, tables_that_packs_write_themselves |
//! | P-12 | tables_that_packs_write_themselves |
//! | P-13 | packs_load_each_in_its_way_and_failures_stay_where_they_are, tables_that_packs_write_themselves |
//! | P-14 | newer_packs_with_a_plain_entry_and_all_widgets, newer_nodes |
//! | P-15 | a_pack_for_another_python_says_which |
//! | P-16 | packs_load_each_in_its_way_and_failures_stay_where_they_are |
//! | P-17 | tables_that_packs_write_themselves |
//! | P-18 | the_contract_of_classes |
//! | P-19 | the_contract_of_classes |
//! | P-20 | types_of_packs_decide_what_may_be_linked, types_and_validators |
//! | P-21 | types_of_packs_decide_what_may_be_linked |
//! | P-22 | types_of_packs_decide_what_may_be_linked |
//! | P-23 | change_checks_and_validators_of_every_form, types_of_packs_decide_what_may_be_linked |
//! | P-24 | the_contract_of_classes, change_checks_and_validators_of_every_form |
//! | P-25 | change_checks_and_validators_of_every_form |
//! | P-26 | the_contract_of_classes, objects_keep_their_state_as_the_cache_says |
//! | P-27 | what_packs_write_into_the_prompt_is_saved_and_history_keeps_the_original |
//! | P-28 | what_packs_write_into_the_prompt_is_saved_and_history_keeps_the_original |
//! | P-29 | expansions_with_pictures_as_literals |
//! | P-30 | numbers_lists_and_blockers |
//! | P-31 | the_contract_of_classes |
//! | P-32 | expansions_with_pictures_as_literals, a_model_as_a_literal_of_an_expansion |
//! | P-33 | asynchronous_nodes_run_together, asynchronous_nodes_progress_and_failures |
//! | P-34 | the_contract_of_classes |
//! | P-35 | newer_packs_with_a_plain_entry_and_all_widgets |
//! | P-36 | newer_packs_with_a_plain_entry_and_all_widgets, newer_nodes |
//! | P-37 | numbers_lists_and_blockers |
//! | P-38 | results_of_every_form, pictures_that_are_only_passed_on_are_not_copied |
//! | P-39 | progress_messages_and_interrupts, progress_and_messages_reach_whom_they_are_for |
//! | P-40 | progress_and_messages_reach_whom_they_are_for, progress_messages_and_interrupts |
//! | P-41 | progress_and_messages_reach_whom_they_are_for |
//! | P-42 | routes_and_handlers_of_prompts |
//! | P-43 | routes_and_handlers_of_prompts, tables_that_packs_write_themselves |
//! | P-44 | each_pack_can_have_a_process_and_handlers_run_one_after_the_other, routes_and_handlers_of_prompts |
//! | P-45 | the_queue_as_packs_see_it |
//! | P-46 | classes_of_the_host_can_be_extended |
//! | P-47 | classes_of_the_host_can_be_extended |
//! | P-48 | functions_on_tensors_give_what_our_nodes_give, helpers_of_the_host, everything_that_packs_import_is_there |
//! | P-49 | everything_that_packs_import_is_there |
//! | P-50 | a_picture_through_the_objects_of_the_host, weights_that_packs_change, a_lora_file_by_the_hosts_function |
//! | P-51 | guidance_samplers_and_noise_in_python, a_guider_of_a_packs_own_predicts |
//! | P-52 | pictures_that_are_only_passed_on_are_not_copied |
//! | P-53 | pictures_cross_and_in_place_changes_stay_in_the_pack, pictures_that_are_only_passed_on_are_not_copied |
//! | P-54 | pictures_that_are_only_passed_on_are_not_copied |
//! | P-55 | the_contract_of_classes, packs_of_two_processes_exchange_tensors_and_nothing_of_their_own |
//! | P-56 | values_of_a_process_that_ended_are_made_again, hostile_nodes_harm_their_prompt_only |
//! | P-57 | hostile_nodes_harm_their_prompt_only |
//! | P-58 | nodes_that_ignore_an_interrupt_end_their_prompt_within_a_second, a_node_that_does_not_heed_the_interrupt_is_named |
//! | P-59 | workers_end_with_the_program, main_py_starts_the_program |
//! | P-60 | a_missing_python_is_named_and_native_prompts_run, a_python_that_is_too_old_is_named, output_of_nodes_is_in_the_log_once |
//!
//! What the issue calls bad input:
//!
//! | A pack that | Tests |
//! |---|---|
//! | fails to import | packs_load_each_in_its_way_and_failures_stay_where_they_are |
//! | prints forever | a_node_that_prints_for_ever_is_interrupted_and_cut |
//! | exits | ends_of_every_kind_are_named_everywhere, packs_load_each_in_its_way_and_failures_stay_where_they_are |
//! | segfaults | ends_of_every_kind_are_named_everywhere, hostile_nodes_harm_their_prompt_only |
//! | forks | ends_of_every_kind_are_named_everywhere, what_does_not_end_the_process |
//! | eats all memory | memory_that_a_pack_eats_is_the_packs |
//! | blocks for ever | a_pack_whose_import_never_ends_is_left_out, a_node_that_does_not_heed_the_interrupt_is_named |
//! | closes its channel | ends_of_every_kind_are_named_everywhere |
//! | sends garbage | ends_of_every_kind_are_named_everywhere |
//! | writes outside its folders | what_is_written_outside_is_named_and_can_be_refused |
//! | needs another Python | a_pack_for_another_python_says_which, a_python_that_is_too_old_is_named |

use super::*;

#[test]
fn every_case_names_tests_that_there_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let mut code = read(folder.join("packs.rs"));
    for entry in std::fs::read_dir(folder.join("packs")).unwrap().flatten() {
        code.push_str(&read(entry.path()));
    }
    let rows: Vec<Vec<&str>> = include_str!("cases.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "))
        .map(|row| row.trim_end_matches(" |").split(" | ").collect())
        .filter(|row: &Vec<&str>| row.len() == 2 && row[1] != "Tests")
        .collect();
    let cases = rows.iter().filter(|row| row[0].starts_with("P-")).count();
    assert_eq!(cases, 60);
    for (number, row) in rows.iter().take(60).enumerate() {
        assert_eq!(row[0], format!("P-{}", number + 1));
    }
    for name in rows.iter().flat_map(|row| row[1].split(", ")) {
        assert!(
            code.contains(&format!("#[test]\nfn {name}()")),
            "there is no test {name}"
        );
    }
}
