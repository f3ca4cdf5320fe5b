//! Cases 16, 17, 20, 22, 26, 41, 47, and the four cache strategies.

use fresco_engine::Strategy;

use crate::harness::Bench;

const MIX: &str = "1 Image value=0; 2 Image value=255; 3 MaskOut value=0.5; 4 LazyMix image1=@1 image2=@2 mask=@3; 5 Save image=@4";

#[test]
fn case_16_a_repeated_prompt_is_all_cached() {
    for strategy in [
        Strategy::Classic,
        Strategy::Lru(0),
        Strategy::Lru(100),
        Strategy::RamPressure(0.001),
    ] {
        for client in [true, false] {
            let mut b = Bench::new(strategy);
            b.with_client = client;
            b.run(MIX);
            let done = b.run(MIX);
            assert_eq!((done.ran().as_str(), done.cached()), ("", "1,2,3,4,5"));
            assert_eq!(done.shown("5"), "[127.5]");
            assert_eq!(
                done.story(),
                "start | cached 1,2,3,4,5 | executed 5 {\"value\":[127.5]} | success"
            );
        }
    }
    let mut b = Bench::new(Strategy::None);
    b.run(MIX);
    let done = b.run(MIX);
    assert_eq!((done.cached(), done.shown("5").as_str()), ("", "[127.5]"));
    assert!(done.ran().contains('5'));
}

#[test]
fn case_17_only_what_changed_runs() {
    let mut b = Bench::new(Strategy::Classic);
    b.run(MIX);
    let done = b.run(&MIX.replace("0.5", "0.4"));
    assert_eq!((done.ran().as_str(), done.cached()), ("3 4 5", "1,2"));
}

#[test]
fn case_20_change_functions() {
    let script = |change: bool| {
        format!("3 Save image=@2; 2 IsChanged image=@1 should_change={change}; 1 Image value=9")
    };
    let mut b = Bench::new(Strategy::Classic);
    let ran: Vec<String> = [false, false, true, true]
        .iter()
        .map(|c| b.run(&script(*c)).ran())
        .collect();
    assert_eq!(ran, ["1 2 3", "", "2 3", "2 3"]);
}

#[test]
fn a_failing_change_function_means_always_run() {
    let mut b = Bench::new(Strategy::Classic);
    b.run("1 BadChange; 2 SaveAny value=@1");
    assert_eq!(b.run("1 BadChange; 2 SaveAny value=@1").ran(), "1 2");
}

#[test]
fn case_22_upstream_change_reruns_the_loop() {
    let script = "1 Image value=255; 2 IsChanged image=@1 should_change=true; 3 HalveTimes image=@2 times=2; 4 Save image=@3";
    let mut b = Bench::new(Strategy::Classic);
    for _ in 0..3 {
        let done = b.run(script);
        assert_eq!(done.shown("4"), "[63.0]");
        assert!(
            done.ran().starts_with("2 3") || done.ran().starts_with("1 2 3"),
            "{}",
            done.ran()
        );
    }
}

#[test]
fn case_22_a_cached_expansion_does_not_expand_again() {
    let script = "1 Image value=255; 2 HalveTimes image=@1 times=3; 3 Save image=@2";
    for strategy in [Strategy::Classic, Strategy::Lru(100)] {
        let mut b = Bench::new(strategy);
        b.run(script);
        assert_eq!(b.run(script).ran(), "");
    }
}

#[test]
fn case_41_an_output_without_ui_is_reported_as_null() {
    let mut b = Bench::new(Strategy::Classic);
    b.run("1 Image value=1; 2 Quiet value=@1");
    let done = b.run("1 Image value=1; 2 Quiet value=@1");
    assert_eq!(
        done.story(),
        "start | cached 1,2 | executed 2 null | success"
    );
}

#[test]
fn a_cached_node_warns_again_although_nobody_asks_it() {
    let mut b = Bench::new(Strategy::Classic);
    let script = "1 Image value=1; 2 Warn image=@1; 3 Warn image=@2; 4 Save image=@3";
    assert!(
        b.run(script)
            .story()
            .contains(r#"executed 2 {"warnings":["odd"]}"#)
    );
    let again = b.run(script);
    assert_eq!(again.ran(), "");
    let story = again.story();
    for id in [2, 3] {
        let told = format!(r#"executed {id} {{"warnings":["odd"]}}"#);
        assert_eq!(story.matches(&told).count(), 1, "{story}");
    }
}

#[test]
fn case_47_tokens_show_in_the_hidden_prompt_only() {
    let mut b = Bench::new(Strategy::Classic);
    let script = "1 Image value=1; 2 IsChanged image=@1 should_change=true; 3 ShowTokens value=@2";
    let done = b.run(script);
    assert_eq!(done.shown("3"), r#"["2=[NaN]"]"#);
}

#[test]
fn ids_are_no_part_of_the_key_unless_the_node_sees_its_own() {
    let mut b = Bench::new(Strategy::Classic);
    b.run("1 Image value=1; 2 Save image=@1");
    assert_eq!(b.run("7 Image value=1; 8 Save image=@7").ran(), "");
    let done = b.run("1 OwnId; 2 OwnId; 3 SaveAny value=@1; 4 SaveAny value=@2");
    assert_eq!(
        (done.shown("3").as_str(), done.shown("4").as_str()),
        (r#"["1"]"#, r#"["2"]"#)
    );
}

#[test]
fn classic_forgets_the_last_prompt_and_lru_does_not() {
    let (a, b_) = (
        "1 Image value=1; 2 Save image=@1",
        "1 Image value=2; 2 Save image=@1",
    );
    let mut b = Bench::new(Strategy::Classic);
    b.run(a);
    b.run(b_);
    assert_eq!(b.run(a).ran(), "1 2");
    let mut b = Bench::new(Strategy::Lru(100));
    b.run(a);
    b.run(b_);
    assert_eq!(b.run(a).ran(), "");
    let mut b = Bench::new(Strategy::Lru(1));
    b.run(a);
    b.run(b_);
    assert_eq!(b.run(a).ran(), "1 2");
}

#[test]
fn instances_live_while_the_id_keeps_its_class() {
    let mut b = Bench::new(Strategy::Classic);
    let script = |v: i64| format!("1 Int value={v}; 2 Counter value=@1");
    assert_eq!(b.run(&script(1)).shown("2"), "[1]");
    assert_eq!(b.run(&script(2)).shown("2"), "[2]");
    b.run("1 Image value=1; 2 Save image=@1");
    assert_eq!(b.run(&script(3)).shown("2"), "[1]");
    let mut b = Bench::new(Strategy::None);
    b.run(&script(1));
    assert_eq!(b.run(&script(2)).shown("2"), "[1]");
}

#[test]
fn a_reset_forgets_everything() {
    let mut b = Bench::new(Strategy::Classic);
    b.run(MIX);
    b.executor.reset();
    assert_eq!(b.run(MIX).cached(), "");
}
