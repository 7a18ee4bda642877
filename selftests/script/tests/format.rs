// SPDX-License-Identifier: GPL-2.0

//! Errors in scripts are reported with file, line and a hint for correction. A failing script shows
//! the expected and the actual result side by side.

use rrxe_script::{parse, run_on_core};

/// Returns the parse error of a script made of a head and `lines`, which begin at line 3.
fn error(lines: &str) -> String {
    parse("t.rrx", &format!("# About.\ntests A-01\n{lines}\n")).unwrap_err()
}

#[test]
fn mistakes_are_told_with_line_and_remedy() {
    for (lines, wanted) in [
        (
            "inject ack psn 1",
            "t.rrx:3: no queue pair yet; right is first: qp rc",
        ),
        (
            "qp rd",
            "t.rrx:3: `rd` is no service; those are: rc, uc, ud",
        ),
        (
            "qp rc\n\ninjekt ack",
            "t.rrx:5: `injekt` is no step; those are: qp, mr",
        ),
        (
            "qp rc\ninject sned-only psn 1",
            "t.rrx:4: `sned-only` is no packet; those are: ack, nak",
        ),
        (
            "qp rc\ninject ack va 1",
            "t.rrx:4: acknowledge has no field va",
        ),
        (
            "qp rc\ninject ack psn 0x2000000",
            "t.rrx:4: 0x2000000 does not fit into psn",
        ),
        (
            "qp rc\ninject ack psn five+",
            "t.rrx:4: `five+` is no number; right are 100",
        ),
        (
            "qp rc\nexpect ack psn",
            "t.rrx:4: the line ends where psn is wanted",
        ),
        (
            "qp rc\nexpect nothing more",
            "t.rrx:4: `more` is one word too many",
        ),
        (
            "qp rc\nadvance 5",
            "t.rrx:4: `5` is no time; right are 67ms",
        ),
        (
            "qp rc\nexpect completion send happy",
            "t.rrx:4: `happy` is no status; those are: success",
        ),
        (
            "qp rc\nfor n in 1..3\nexpect nothing",
            "t.rrx:4: the loop has no `end`",
        ),
        (
            "tests B-8",
            "t.rrx:3: `B-8` is no statement; right is: tests B-08",
        ),
        ("core-only", "t.rrx:3: core-only is followed by the reason"),
    ] {
        let found = error(lines);
        assert!(found.starts_with(wanted), "{lines}: {found}");
    }
    assert!(parse("t.rrx", "# About.\nqp rc")
        .unwrap_err()
        .contains("right is: tests"));
    assert!(parse("t.rrx", "tests A-01\nqp rc")
        .unwrap_err()
        .contains("begins with a comment"));
}

/// Returns the report of a failing script.
fn failure(lines: &str) -> String {
    let script = parse("t.rrx", &format!("# About.\ntests A-01\n{lines}\n")).unwrap();
    run_on_core(&script).unwrap_err()
}

#[test]
fn failures_show_both_packets_and_the_conversation() {
    let text = failure(
        "qp rc rq-psn 100\npost recv 64\ninject send-only psn 100\nexpect ack psn 100 msn 2",
    );
    assert!(
        text.starts_with("t.rrx:6: expect ack psn 100 msn 2\n"),
        "{text}"
    );
    let row = text
        .lines()
        .find(|line| line.trim().starts_with("msn"))
        .unwrap();
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!(words, ["msn", "2", "1", "<<<"]);
    assert!(
        text.contains("   5  --> send-only ackreq 1 psn 100 len 64"),
        "{text}"
    );
    assert!(text.contains("   6  <-- ack psn 100 msn 1"), "{text}");

    let text = failure("qp rc\nexpect ack psn 1");
    assert!(text.contains("nothing  <<<"), "{text}");
    let text = failure("qp rc rq-psn 1\ninject write-only psn 1 len 4\nexpect ack");
    assert!(text.contains("region mr from byte 0 on"), "{text}");
    let text = failure("qp rc\ninject send-only psn 101\nqp rc");
    assert!(
        text.contains("expected nothing\nreal     nak sequence psn 100"),
        "{text}"
    );
    let text = failure("qp rc\npost send 8\nexpect send-only psn 500 fill 0x11");
    let row = text.lines().find(|line| line.contains("from +0")).unwrap();
    assert!(
        row.contains("1112131415161718") && row.contains("1011121314151617"),
        "{text}"
    );
}

/// Checks that every script in the repository can be parsed, including those that run in guests
/// only.
#[test]
fn all_scripts_are_well_formed() {
    let files = rrxe_script::all().unwrap();
    assert!(!files.is_empty());
    for file in files {
        if let Err(why) = rrxe_script::load(&file) {
            panic!("{why}");
        }
    }
}
