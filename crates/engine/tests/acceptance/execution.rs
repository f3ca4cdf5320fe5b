//! Cases 15, 18, 19, 21 to 25, 27 to 36, 38, 41 to 43.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fresco_engine::{
    ExecutorConfig, FreeRequest, JobEnd, MemoryRoom, RoomReport, Strategy, Unload,
};

use crate::harness::Bench;

fn bench() -> Bench {
    Bench::new(Strategy::Classic)
}

#[test]
fn case_15_lazy_inputs_that_are_not_needed_do_not_run() {
    let script = |mask: f64| {
        format!(
            "1 Image value=0; 2 Image value=255; 3 MaskOut value={mask}; 4 LazyMix image1=@1 image2=@2 mask=@3; 5 Save image=@4"
        )
    };
    let done = bench().run(&script(0.0));
    assert_eq!(
        (done.ran().as_str(), done.shown("5").as_str()),
        ("3 4 1 4 5", "[0.0]")
    );
    let done = bench().run(&script(1.0));
    assert_eq!(
        (done.ran().as_str(), done.shown("5").as_str()),
        ("3 4 2 4 5", "[255.0]")
    );
    let done = bench().run(&script(0.5));
    assert_eq!(done.shown("5"), "[127.5]");
}

#[test]
fn lazy_checks_that_ask_for_nonsense_fail_clearly() {
    let done = bench().run("1 LazyWrong which=nothing value=1; 2 SaveAny value=@1");
    assert!(
        done.error()
            .contains("NodeInputError: Node 1 says it needs input nothing"),
        "{}",
        done.error()
    );
    // A literal that is there is not missing, so asking for it asks for nothing.
    let done = bench().run("1 LazyWrong which=value value=1; 2 SaveAny value=@1");
    assert_eq!(done.shown("2"), "[\"value\"]");
}

#[test]
fn a_link_that_leads_nowhere_is_the_error_of_the_output_that_needs_it() {
    // Only an unwrapped value can look like a link and escape validation.
    let done = bench().run(
        r#"1 Sleep value={"__value__":["gone",0]} seconds=0; 2 SaveAny value=@1; 3 SaveAny value=5"#,
    );
    let expected = "2 comfy_execution.graph.NodeNotFoundError: Node gone not found";
    assert_eq!(done.error(), expected);
    assert_eq!(bench().run("1 SaveAny value=7").shown("1"), "[7]");
}

#[test]
fn case_18_node_error_reaches_the_client() {
    let done = bench().run(
        "1 Image value=1 size=2; 2 Image value=2; 3 MaskOut value=0.5; 4 LazyMix image1=@1 image2=@2 mask=@3; 5 Save image=@4",
    );
    assert!(
        done.error()
            .starts_with("4 RuntimeError: The size of tensor a"),
        "{}",
        done.error()
    );
    assert!(!done.outcome.end.is_finished());
}

#[test]
fn case_19_cycle_inside_an_expansion() {
    let done = bench().run("1 Image value=1; 2 ExpandCycle image=@1; 3 Save image=@2");
    assert_eq!(
        done.error(),
        "2 graph.DependencyCycleError: Dependency cycle detected"
    );
    assert!(!done.outcome.end.is_finished());
}

#[test]
fn case_21_undeclared_links_are_passed() {
    let done = bench().run(
        "1 Image value=255; 2 Image value=0; 3 Average input1=@1 input2=@2 input3=@2 input4=@2; 4 Save image=@3",
    );
    assert_eq!(done.shown("4"), "[63.0]");
}

#[test]
fn case_22_loops_by_expansion() {
    for (times, want) in [
        (0, "[255.0]"),
        (1, "[127.0]"),
        (4, "[15.0]"),
        (200, "[0.0]"),
    ] {
        let done = bench().run(&format!(
            "1 Image value=255; 2 HalveTimes image=@1 times={times}; 3 Save image=@2"
        ));
        assert_eq!(done.shown("3"), want);
        assert!(done.outcome.end.is_finished());
    }
}

#[test]
fn expansion_events_name_the_expanding_node() {
    let done = bench().run("1 Image value=8; 2 HalveTimes image=@1 times=1; 3 Save image=@2");
    assert_eq!(done.ran(), "1 2 2.0.0.1(2) 3");
    let done = bench().run("1 Image value=8; 2 ExpandOutput image=@1; 3 Save image=@2");
    assert!(done.ran().contains("2.0.0.save(1)"), "{}", done.ran());
    assert_eq!(done.shown("2.0.0.save"), "[8.0]");
    let meta = fresco_graph::json::to_string(&done.outcome.meta["2.0.0.save"]);
    assert_eq!(
        meta,
        r#"{"node_id":"2.0.0.save","display_node":"1","parent_node":"2","real_node_id":"2"}"#
    );
}

#[test]
fn case_23_lists_through_plain_and_expanding_nodes() {
    for expand in ["false", "true"] {
        let done = bench().run(&format!(
            "1 MakeList value1=0.1 value2=0.2; 9 Float value=0.1; 8 Float value=0.2; 7 Float value=0.3; 2 MakeList value1=@9 value2=@8 value3=@7; 3 Mixed value=@2 expand={expand}; 4 Gather values=@3; 5 Gather values=@3.1"
        ));
        assert_eq!(done.shown("4"), "[25.0,51.0,76.0]", "{}", done.error());
        assert_eq!(done.shown("5"), "[255.0,255.0,255.0]");
    }
}

#[test]
fn case_24_lists_through_a_lazy_node() {
    let done = bench().run(
        "1 Image value=0; 2 Image value=255; 6 MaskOut value=0; 7 MaskOut value=0.5; 8 MaskOut value=1; 3 MakeList value1=@6 value2=@7 value3=@8; 4 LazyMix image1=@1 image2=@2 mask=@3; 5 Gather values=@4",
    );
    assert_eq!(done.shown("5"), "[0.0,127.5,255.0]");
}

#[test]
fn case_25_two_outputs_on_one_source() {
    let done = bench().run("1 Image value=7; 2 Save image=@1; 3 Save image=@1");
    assert_eq!(
        (done.shown("2").as_str(), done.shown("3").as_str()),
        ("[7.0]", "[7.0]")
    );
    // The second is the first one's twin and comes from the cache, under its own name.
    assert_eq!(
        done.outcome.meta["3"]
            .get("node_id")
            .and_then(fresco_graph::Value::as_str),
        Some("3")
    );
}

#[test]
fn case_27_28_34_asynchronous_nodes_overlap() {
    let began = Instant::now();
    let done = bench().run(
        "1 Image value=0; 2 Image value=255; 3 Sleep value=@1 seconds=2.0; 4 Sleep value=@2 seconds=2.1; 5 Sleep value=@2 seconds=2.2; 6 Average input1=@3 input2=@4 input3=@5; 7 Save image=@6",
    );
    assert_eq!(done.shown("7"), "[170.0]");
    // One after the other they would take 6.3 s; this bound only tells the two apart.
    assert!(
        began.elapsed() < Duration::from_millis(6200),
        "{:?}",
        began.elapsed()
    );

    let began = Instant::now();
    let done =
        bench().run("1 Image value=0; 2 Image value=255; 3 ExpandSleeps a=@1 b=@2 c=@2 seconds=2.1; 4 Save image=@3");
    assert_eq!(done.shown("4"), "[170.0]");
    assert!(done.ran().split(' ').any(|n| n == "3"));
    assert!(
        began.elapsed() < Duration::from_millis(6200),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn an_asynchronous_node_that_ends_at_once_needs_no_waiting() {
    let done = bench().run("1 Image value=3; 2 AsyncNow value=@1; 3 Save image=@2");
    assert_eq!(done.shown("3"), "[3.0]");
}

#[test]
fn case_29_only_the_blocked_element_is_missing() {
    let done = bench().run(
        "1 Float value=1; 2 Float value=2; 3 Blocker input=@2 block=true verbose=false; 4 MakeList value1=@1 value2=@3 value3=@1; 5 SaveAny value=@4",
    );
    // A blocked element blocks the call that makes the list, so nothing is left here.
    assert_eq!(done.shown("5"), "-");
    assert!(done.outcome.end.is_finished());
    let done = bench().run(
        "1 Float value=1; 2 Float value=2; 3 MakeList value1=@1 value2=@2 value3=@1; 5 SaveAny value=@3",
    );
    assert_eq!(done.shown("5"), "[1.0,2.0,1.0]");
    let done = bench().run(
        "6 Int value=0; 7 Int value=1; 8 MakeList value1=@6 value2=@7 value3=@6; 3 Blocker input=@8 block=@8 verbose=false; 5 SaveAny value=@3",
    );
    assert_eq!(done.shown("5"), "[0,0]");
}

#[test]
fn case_43_a_blocker_with_a_message_is_reported_once() {
    let done = bench().run("1 Image value=1; 2 Blocker input=@1 block=true verbose=true; 3 Average input1=@2; 4 Save image=@3");
    assert_eq!(
        done.story(),
        "start | cached  | executing 1 | executing 2 | executing 3 | blocked 3: Block! | executing 4 | success"
    );
    assert!(done.outcome.end.is_finished());
    assert_eq!(done.shown("4"), "-");
}

#[test]
fn case_42_a_bare_blocker_blocks() {
    let done = bench().run("1 OnlyBlock; 2 SaveAny value=@1");
    assert_eq!(done.shown("2"), "-");
    assert!(done.outcome.end.is_finished());
}

#[test]
fn case_30_partial_targets() {
    let script = "1 Image value=8; 2 Scale image=@1; 3 Save image=@2; 4 Save image=@1";
    let done = bench().run_targets(script, Some(&["3"]));
    assert_eq!(done.ran(), "1 2 3");
    assert_eq!(done.shown("2"), "[8.0]");
    assert_eq!(done.shown("4"), "-");
}

#[test]
fn case_31_33_errors_with_asynchronous_nodes_around() {
    let mut b = bench();
    let done =
        b.run("1 Image value=1; 2 Sleep value=@1 seconds=0.01 fail=timed_out; 3 Save image=@2");
    assert_eq!(done.error(), "2 ValueError: timed_out");
    let done = b.run("1 Image value=1; 2 Sleep value=@1 seconds=5; 3 Fail value=@1; 4 Average input1=@2 input2=@3; 5 Save image=@4");
    assert_eq!(done.error(), "3 ValueError: bad true");
    let done = b.run("1 Image value=1; 2 Save image=@1");
    assert!(done.outcome.end.is_finished());
}

#[test]
fn a_panic_or_lack_of_memory_ends_that_prompt_only() {
    let mut b = bench();
    let done = b.run("1 Fail how=panic; 2 SaveAny value=@1");
    assert_eq!(done.error(), "1 RuntimeError: the node panicked: oh dear");
    let done = b.run("1 Fail how=memory; 2 SaveAny value=@1");
    assert!(
        done.error()
            .contains("This error means you ran out of memory on your GPU."),
        "{}",
        done.error()
    );
    assert!(
        b.run("1 Image value=1; 2 Save image=@1")
            .outcome
            .end
            .is_finished()
    );
}

#[test]
fn a_prompt_ends_before_it_takes_the_last_memory() {
    struct Full(AtomicBool);
    impl MemoryRoom for Full {
        fn after_prompt(&self, _: &str) {}
        fn unload_all(&self, _: &str, _: Unload) {}
        fn free(&self, _: &FreeRequest, _: Option<&str>) -> Option<RoomReport> {
            None
        }
        fn release_caches(&self) {}
        fn available_ram(&self) -> Option<u64> {
            Some(if self.0.load(Ordering::Relaxed) {
                100 << 20
            } else {
                8 << 30
            })
        }
    }
    let memory = Arc::new(Full(true.into()));
    let mut b = Bench::with_memory(Strategy::Classic, memory.clone());
    // The first node takes long enough for the question to be due.
    let script = "1 Image value=1; 2 Sleep value=@1 seconds=0.02; 3 Save image=@2";
    // On a busy machine it is due earlier, so which node is stopped is not told.
    let done = b.run(script);
    let error = done.error();
    let why = error.split_once(' ').map(|(_, why)| why);
    assert_eq!(
        why,
        Some("MemoryError: this machine has only 100 MiB of memory left"),
        "{error}"
    );
    memory.0.store(false, Ordering::Relaxed);
    assert!(b.run(script).outcome.end.is_finished());
}

fn with_budget(cache: Strategy, kib: u64) -> Bench {
    Bench::with_config(|config| ExecutorConfig {
        cache,
        max_prompt_memory: kib << 10,
        ..config
    })
}

/// Texts, each made after the one before, all of them wanted at the end.
fn chain(texts: usize, kib: usize) -> String {
    let words = |i: usize| match i {
        1 => format!("1 Words kib={kib} number=1;"),
        i => format!("{i} Words kib={kib} number={i} after=@{};", i - 1),
    };
    let made: String = (1..=texts).map(words).collect();
    format!("{made} 99 SaveAny value=@{texts}")
}

#[test]
fn the_values_of_a_prompt_have_one_budget() {
    for cache in [
        Strategy::Classic,
        Strategy::Lru(100),
        Strategy::RamPressure(0.001),
    ] {
        let mut b = with_budget(cache, 950);
        assert!(b.run(&chain(8, 100)).outcome.end.is_finished(), "{cache:?}");
        let done = b.run(&chain(12, 100));
        let error = done.error();
        assert!(
            error.starts_with("10 MemoryError: ") && error.contains("--max-prompt-memory"),
            "{cache:?}: {error}"
        );
        // What an earlier prompt left makes room.
        let other = chain(8, 100).replace("number=", "number=7");
        assert!(b.run(&other).outcome.end.is_finished(), "{cache:?}");
    }
}

#[test]
fn without_a_cache_only_what_is_wanted_still_counts() {
    let mut b = with_budget(Strategy::None, 1000);
    assert!(b.run(&chain(40, 100)).outcome.end.is_finished());
}

#[test]
fn values_that_are_shared_count_once() {
    let mut b = with_budget(Strategy::Classic, 500);
    let passed: String = (2..20)
        .map(|i| format!("{i} Sleep value=@{} seconds=0;", i - 1))
        .collect::<Vec<_>>()
        .concat();
    let script = format!("1 Words kib=400 number=1; {passed} 99 SaveAny value=@19");
    let done = b.run(&script);
    assert!(done.outcome.end.is_finished(), "{}", done.error());
}

#[test]
fn a_list_that_grows_call_by_call_counts_too() {
    let mut b = with_budget(Strategy::Classic, 1000);
    let numbers: String = (11..=50)
        .map(|i| format!("{i} Int value={i}; "))
        .collect::<Vec<_>>()
        .concat();
    let links: String = (1..=40)
        .map(|i| format!(" value{i}=@{}", i + 10))
        .collect::<Vec<_>>()
        .concat();
    let done = b.run(&format!(
        "{numbers} 1 MakeList{links}; 2 Words kib=100 number=@1; 3 SaveAny value=@2"
    ));
    assert!(
        done.error().starts_with("2 MemoryError: "),
        "{}",
        done.error()
    );
}

#[test]
fn case_38_progress_reports() {
    let done = bench().run("1 Steps steps=2 picture=true; 2 SaveAny value=@1");
    assert_eq!(
        done.story(),
        "start | cached  | executing 1 | progress 1 1/2 picture | progress 1 2/2 picture | executing 2 | executed 2 {\"value\":[2]} | success"
    );
}

#[test]
fn the_plain_sequence() {
    let done = bench().run("1 Image value=1; 2 Save image=@1");
    assert_eq!(
        done.events.join(" | "),
        "start | cached  | state 1 | executing 1 | state 1+ | state 1+,2 | executing 2 | executed 2 {\"value\":[1.0]} | state 1+,2+ | success"
    );
    let messages = fresco_graph::Value::from(done.outcome.messages);
    let names: Vec<_> = messages
        .as_list()
        .unwrap()
        .iter()
        .map(|m| m.as_list().unwrap()[0].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["execution_start", "execution_cached", "execution_success"]
    );
}

#[test]
fn an_interrupt_takes_effect_between_calls() {
    let mut b = bench();
    let flag = b.control.cancel.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        flag.raise();
    });
    let done = b.run("1 Forever deaf=false; 2 SaveAny value=@1");
    thread.join().unwrap();
    assert!(done.outcome.end == JobEnd::Interrupted);
    assert!(done.story().ends_with("interrupted 1"), "{}", done.story());
    assert!(
        b.run("1 Image value=1; 2 Save image=@1")
            .outcome
            .end
            .is_finished()
    );
}

#[test]
fn case_45_an_interrupt_reaches_a_sleeping_prompt() {
    let mut b = bench();
    let flag = b.control.cancel.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        flag.raise();
    });
    let began = Instant::now();
    let done = b.run("1 Image value=1; 2 Sleep value=@1 seconds=300; 3 Save image=@2");
    thread.join().unwrap();
    assert!(done.outcome.end == JobEnd::Interrupted && began.elapsed() < Duration::from_mins(2));
    assert!(done.story().ends_with("interrupted 2"), "{}", done.story());
}

#[test]
fn a_node_without_inputs_does_not_kill_anyone() {
    let b = bench();
    let mut prompt = crate::harness::parse("1 Image value=1; 2 Save image=@1");
    prompt.insert(
        "9".into(),
        fresco_graph::map! {"class_type" => "OwnId"}.into(),
    );
    assert!(crate::harness::validate(&b.registry.snapshot(), prompt, None).is_ok());
}

#[test]
fn case_32_a_time_out_is_told_as_such() {
    let done = bench().run(
        "1 Image value=1; 2 Sleep value=@1 seconds=0.01 fail=operation_timed_out; 3 Save image=@2",
    );
    assert!(done.error().contains("timed_out"), "{}", done.error());
}

#[test]
fn case_35_36_lazy_literals_and_mixed_chains() {
    let done = bench().run("1 LazyMix image1=10 image2=20 mask=0.5; 2 Save image=@1");
    assert_eq!(
        (done.ran().as_str(), done.shown("2").as_str()),
        ("1 2", "[15.0]")
    );
    let done = bench().run(
        "1 Image value=8; 2 Sleep value=@1 seconds=0.02; 3 Average input1=@2; 4 Sleep value=@3 seconds=0.01; 5 AsyncNow value=@4; 6 Save image=@5",
    );
    assert_eq!(
        (done.ran().as_str(), done.shown("6").as_str()),
        ("1 2 3 4 5 6", "[8.0]")
    );
}

#[test]
fn case_40_previews_are_asked_for_prompt_by_prompt() {
    let mut b = bench();
    let mut pictures = Vec::new();
    for (seed, method) in [
        (1, "latent2rgb"),
        (2, "none"),
        (3, "default"),
        (4, "LATENT2RGB"),
        (5, "taesd"),
    ] {
        b.extra_data = fresco_graph::map! {"preview_method" => method};
        let done = b.run(&format!("1 Previewer seed={seed}; 2 SaveAny value=@1"));
        pictures.push(done.story().contains("picture"));
    }
    assert_eq!(pictures, [true, false, false, false, true]);
}
