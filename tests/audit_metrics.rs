//! Figures over hand-made lives: edge cases that averages hide, and the published
//! figures that have to come out to the last digit.

use runseal::bundle::files::GradeLine;
use runseal::event::EndCause;
use runseal::grading::{Declared, THINK_TAGS};
use runseal::metrics::Metric;
use runseal::metrics::serving::serving;
use runseal::plan::LoadPlan;
use runseal::scorer::Grade;
use runseal::trace::{Trace, Usage};

const MS: u64 = 1_000_000;

/// A completed attempt: sent and ended at these nanoseconds, with chunks at these.
fn life(send: u64, end: u64, chunks: &[u64], tokens: Option<u64>) -> Trace {
    Trace {
        case: format!("c{send}"),
        queued: send.saturating_sub(MS),
        connect_start: Some(send.saturating_sub(MS)),
        connected: Some(send),
        send: Some(send),
        headers: Some(send),
        status: Some(200),
        event_stream: true,
        first_generated: chunks.first().copied(),
        first_content: chunks.first().copied(),
        last_generated: chunks.last().copied(),
        chunks: chunks.to_vec(),
        usage: tokens.map(|n| Usage {
            completion: Some(n),
            ..Usage::default()
        }),
        finish: Some("stop".into()),
        end: Some(end),
        cause: Some(EndCause::Eof),
        ..Trace::default()
    }
}

fn figures(lives: &[Trace], flags: &[&str], grade: Grade) -> Vec<Metric> {
    let declared: Vec<Declared> = lives
        .iter()
        .map(|t| Declared {
            case: &t.case,
            rep: t.rep,
            trace: Some(t),
        })
        .collect();
    let grades: Vec<GradeLine> = lives
        .iter()
        .map(|t| GradeLine {
            case: t.case.clone(),
            rep: t.rep,
            grade: grade.clone(),
            flags: flags.iter().map(|f| (*f).to_owned()).collect(),
        })
        .collect();
    let load = LoadPlan {
        mode: "closed".into(),
        concurrency: 1,
        repetitions: 1,
        spread: "round-robin".into(),
        stages: Vec::new(),
        retry: None,
    };
    serving(&load, &declared, &lives.iter().collect::<Vec<_>>(), &grades)
}

fn of(lives: &[Trace]) -> Vec<Metric> {
    figures(lives, &[], Grade::Pass)
}

fn value(metrics: &[Metric], id: &str) -> Option<String> {
    get(metrics, id).value.clone()
}

fn get<'a>(metrics: &'a [Metric], id: &str) -> &'a Metric {
    metrics.iter().find(|m| m.id == id).unwrap()
}

/// The published serving record: eight durations, one client.
#[test]
fn the_published_durations_come_out() {
    const US: [u64; 8] = [
        3_923_377, 6_931_260, 3_801_035, 4_393_570, 4_387_226, 3_203_412, 3_635_690, 6_869_321,
    ];
    let mut at = MS;
    let lives: Vec<Trace> = US
        .iter()
        .map(|us| {
            let send = at;
            at += us * 1000;
            life(send, at, &[send + MS, at], Some(98))
        })
        .collect();
    let m = of(&lives);
    assert_eq!(value(&m, "request-duration-median/v1").unwrap(), "4155.302");
    assert_eq!(value(&m, "request-duration-p95/v1").unwrap(), "6909.581");
    assert!(
        get(&m, "request-duration-p95/v1")
            .note
            .as_ref()
            .unwrap()
            .contains("unstable")
    );
    assert_eq!(value(&m, "batch-duration/v1").unwrap(), "37.145");
    assert_eq!(value(&m, "chunks/v1").unwrap(), "16");
    assert_eq!(value(&m, "tokens-per-chunk/v1").unwrap(), "49.000");
    assert_eq!(value(&m, "peak-overlap/v1").unwrap(), "1");
    assert_eq!(value(&m, "queue-time-max/v1").unwrap(), "0.000");
}

#[test]
fn nothing_sent_has_no_figures_and_no_division_by_zero() {
    let m = of(&[]);
    for id in [
        "completion-throughput/v1",
        "goodput/v1",
        "first-generated-median/v1",
        "request-duration-p95/v1",
        "tokens-per-chunk/v1",
        "batch-duration/v1",
    ] {
        assert_eq!(value(&m, id), None, "{id}");
        assert!(get(&m, id).note.is_some(), "{id} says why");
    }
    assert_eq!(value(&m, "chunks/v1").unwrap(), "0");
}

/// A batch of no length gives no rate.
#[test]
fn a_batch_without_length_has_no_rate() {
    let m = of(&[life(MS, MS, &[], Some(5))]);
    assert_eq!(value(&m, "completion-throughput/v1"), None);
    assert_eq!(value(&m, "goodput/v1"), None);
    assert_eq!(value(&m, "batch-duration/v1").unwrap(), "0.000");
}

#[test]
fn zero_tokens_are_a_count_and_missing_ones_are_not() {
    // Nothing generated, zero reported: a true zero.
    let m = of(&[life(MS, 2 * MS, &[], Some(0))]);
    assert_eq!(value(&m, "completion-throughput/v1").unwrap(), "0.000");
    // Zero with text means not reported, and the rate is incomplete.
    let m = of(&[life(MS, 2 * MS, &[MS + 1], Some(0))]);
    assert_eq!(value(&m, "completion-throughput/v1"), None);
    // One of two without usage: no rate over the other alone.
    let m = of(&[
        life(MS, 2 * MS, &[MS + 1], Some(8)),
        life(2 * MS, 3 * MS, &[2 * MS + 1], None),
    ]);
    let rate = get(&m, "completion-throughput/v1");
    assert_eq!(rate.value, None);
    assert_eq!(
        rate.note.as_deref().unwrap(),
        "incomplete: 1 completed attempts without a token count"
    );
    // A lost attempt needs no count, and its time stays in the denominator.
    let mut lost = life(2 * MS, 1002 * MS, &[], None);
    lost.finish = None;
    let m = of(&[life(2 * MS, 3 * MS, &[2 * MS + 1], Some(8)), lost]);
    assert_eq!(value(&m, "completion-throughput/v1").unwrap(), "8.000");
}

#[test]
fn an_attempt_without_end_leaves_the_batch_open() {
    let mut open = life(2 * MS, 3 * MS, &[], None);
    (open.end, open.cause) = (None, None);
    let m = of(&[life(MS, 2 * MS, &[MS + 1], Some(8)), open]);
    assert_eq!(value(&m, "batch-duration/v1"), None);
    assert_eq!(value(&m, "goodput/v1"), None);
    assert_eq!(value(&m, "peak-overlap/v1").unwrap(), "1");
    assert_eq!(get(&m, "request-duration-median/v1").n, 1);
}

/// Spans are half-open: one that begins where another ends does not overlap it.
#[test]
fn spans_that_touch_do_not_overlap() {
    let span = |a, b| life(a, b, &[], Some(1));
    let peak = |lives: &[Trace]| value(&of(lives), "peak-overlap/v1").unwrap();
    assert_eq!(peak(&[span(MS, 2 * MS), span(2 * MS, 3 * MS)]), "1");
    assert_eq!(peak(&[span(MS, 2 * MS + 1), span(2 * MS, 3 * MS)]), "2");
    assert_eq!(
        peak(&[span(MS, 9 * MS), span(2 * MS, 3 * MS), span(3 * MS, 4 * MS)]),
        "2"
    );
    assert_eq!(
        peak(&[span(MS, 2 * MS), span(MS, 2 * MS), span(MS, 2 * MS)]),
        "3"
    );
    assert_eq!(
        peak(&[span(MS, MS)]),
        "0",
        "a span of no length holds no instant"
    );
    assert_eq!(peak(&[]), "0");
}

/// With reasoning tags in the content nobody knows when final content began.
#[test]
fn think_tags_leave_content_timing_out() {
    let lives = [life(MS, 2 * MS, &[MS + 500], Some(1))];
    let m = figures(&lives, &[THINK_TAGS], Grade::Pass);
    let content = get(&m, "first-content-median/v1");
    assert_eq!((content.value.clone(), content.n), (None, 0));
    assert_eq!(
        content.note.as_deref().unwrap(),
        "1 attempts with think tags left out"
    );
    assert_eq!(value(&m, "first-generated-median/v1").unwrap(), "0.000");
}

/// Failed and ungraded attempts are in the denominator of goodput, its time.
#[test]
fn goodput_counts_passes_only() {
    let lives = [life(MS, 501 * MS, &[], Some(1))];
    let ungraded = Grade::Ungraded { reason: "x".into() };
    assert_eq!(
        value(&figures(&lives, &[], Grade::Pass), "goodput/v1").unwrap(),
        "2.000000"
    );
    assert_eq!(
        value(&figures(&lives, &[], ungraded), "goodput/v1").unwrap(),
        "0.000000"
    );
}

#[test]
fn intervals_may_be_zero_and_are_between_chunks_of_one_attempt() {
    let m = of(&[
        life(MS, 9 * MS, &[2 * MS, 2 * MS, 4 * MS], Some(3)),
        life(9 * MS, 19 * MS, &[18 * MS], Some(1)),
    ]);
    let interval = get(&m, "chunk-interval-median/v1");
    assert_eq!((interval.n, interval.value.as_deref()), (2, Some("1.000")));
}

/// Tokens in the first chunk are not taken for one: where the server counts with each
/// chunk, what it had counted then is taken off; where it does not, nothing is said.
#[test]
fn time_per_output_token_needs_a_count_with_the_first_chunk() {
    let id = "time-per-output-token/v1";
    let mut counted = life(0, 100 * MS, &[10 * MS, 50 * MS, 90 * MS], Some(12));
    assert_eq!(value(&of(&[counted.clone()]), id), None);
    // 80 ms for the 8 tokens behind the first chunk of 4.
    counted.first_chunk_tokens = Some(4);
    assert_eq!(
        value(&of(&[counted.clone()]), id).as_deref(),
        Some("10.000")
    );
    // All tokens in one chunk: nothing came after it.
    let mut one = life(1, 20, &[10], Some(4));
    one.first_chunk_tokens = Some(4);
    assert_eq!(value(&of(&[one.clone()]), id), None);
    let both = of(&[counted, one]);
    assert_eq!(get(&both, id).n, 1);
}
