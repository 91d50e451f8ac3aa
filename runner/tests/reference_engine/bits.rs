//! The same bytes give the same bits, however the work is cut.

use std::ops::ControlFlow;
use std::thread;

use runseal_runner::reference::{Engine, EngineError, Finish, Generation, Outcome};

use super::synthetic::Checkpoint;

fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 37 + 11) % 256).collect()
}

/// Bits of the logits after feeding `tokens` in pieces of these sizes, the last repeated.
fn fed(engine: &Engine, tokens: &[u32], sizes: &[usize]) -> Vec<u32> {
    let mut session = engine.session(tokens.len()).unwrap();
    let (mut rest, mut sizes, mut size) = (tokens, sizes.iter(), 1);
    let mut logits = Vec::new();
    while !rest.is_empty() {
        size = *sizes.next().unwrap_or(&size);
        let (piece, left) = rest.split_at(size.min(rest.len()));
        logits = session
            .feed(piece)
            .unwrap()
            .iter()
            .map(|logit| logit.to_bits())
            .collect();
        rest = left;
    }
    assert_eq!(session.position(), tokens.len());
    logits
}

#[test]
fn the_engine_agrees_with_the_plain_decoder() {
    let checkpoint = Checkpoint::noise();
    let engine = checkpoint.engine();
    for length in [1, 2, 15, 16, 17, 33, 65] {
        let tokens = prompt(length);
        let plain: Vec<u32> = checkpoint
            .plain_logits(&tokens)
            .iter()
            .map(|logit| logit.to_bits())
            .collect();
        assert_eq!(fed(&engine, &tokens, &[length]), plain, "{length} tokens");
    }
}

#[test]
fn prefill_pieces_do_not_change_a_bit() {
    let engine = Checkpoint::noise().engine();
    let tokens = prompt(150);
    let whole = fed(&engine, &tokens, &[150]);
    assert_eq!(whole.len(), 260);
    for sizes in [
        &[1][..],
        &[7],
        &[31],
        &[32],
        &[33],
        &[64, 1, 5, 80],
        &[3, 147],
    ] {
        assert_eq!(fed(&engine, &tokens, sizes), whole, "pieces of {sizes:?}");
    }
    assert_ne!(
        fed(&engine, &tokens[1..], &[149]),
        whole,
        "the first token has to matter"
    );
}

#[test]
fn the_capacity_of_a_session_does_not_change_a_bit() {
    let engine = Checkpoint::noise().engine();
    let tokens = prompt(20);
    let mut roomy = engine.session(256).unwrap();
    let bits: Vec<u32> = roomy
        .feed(&tokens)
        .unwrap()
        .iter()
        .map(|logit| logit.to_bits())
        .collect();
    assert_eq!(bits, fed(&engine, &tokens, &[20]));
}

fn generate(engine: &Engine, request: &Generation) -> Outcome {
    engine
        .generate(request, |_| ControlFlow::Continue(()))
        .unwrap()
}

fn request(length: usize, temperature: f32, seed: u64) -> Generation {
    Generation {
        prompt: prompt(length),
        max_tokens: 40,
        min_tokens: 0,
        temperature,
        seed,
        ignore_eos: true,
    }
}

#[test]
fn requests_beside_each_other_do_not_change_an_answer() {
    let engine = Checkpoint::noise().engine();
    let requests: Vec<_> = (0..6)
        .map(|i| request(5 + 13 * i, (i % 2) as f32, i as u64))
        .collect();
    let alone: Vec<_> = requests
        .iter()
        .map(|request| generate(&engine, request))
        .collect();
    let together: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = requests
            .iter()
            .map(|request| scope.spawn(|| generate(&engine, request)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn generation_equals_feeding_its_own_answer() {
    let engine = Checkpoint::noise().engine();
    let request = request(50, 0.0, 0);
    let outcome = generate(&engine, &request);
    assert_eq!((outcome.tokens.len(), outcome.finish), (40, Finish::Length));
    let mut sequence = request.prompt.clone();
    for token in outcome.tokens {
        let logits = fed(&engine, &sequence, &[sequence.len()]);
        let best = (0u32..)
            .zip(logits)
            .map(|(id, bits)| (id, f32::from_bits(bits)))
            .reduce(|best, next| if next.1 > best.1 { next } else { best });
        assert_eq!(best.unwrap().0, token);
        sequence.push(token);
    }
}

#[test]
fn a_seed_decides_a_sampled_answer() {
    let engine = Checkpoint::noise().engine();
    let answer = |temperature, seed| generate(&engine, &request(9, temperature, seed)).tokens;
    assert_eq!(answer(1.0, 5), answer(1.0, 5));
    assert_ne!(answer(1.0, 5), answer(1.0, 6));
    assert_eq!(answer(0.0, 5), answer(0.0, 6));
}

#[test]
fn the_limits_of_a_session_are_errors() {
    let engine = Checkpoint::noise().engine();
    assert!(matches!(
        engine.session(257),
        Err(EngineError::Context {
            wanted: 257,
            limit: 256
        })
    ));
    let mut session = engine.session(3).unwrap();
    assert!(matches!(
        session.feed(&[1, 2, 3, 4]),
        Err(EngineError::Context {
            wanted: 4,
            limit: 3
        })
    ));
    assert!(matches!(
        session.feed(&[260]),
        Err(EngineError::Token {
            id: 260,
            vocabulary: 260
        })
    ));
    assert!(session.feed(&[]).unwrap().is_empty());
    assert_eq!(session.feed(&[1, 2, 3]).unwrap().len(), 260);
}

/// One figure over many logits. It is the same on every machine, or the promise is broken.
#[test]
fn the_bits_are_those_of_every_other_machine() {
    let engine = Checkpoint::noise().engine();
    let mut session = engine.session(100).unwrap();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for token in prompt(100) {
        for logit in session.feed(&[token]).unwrap() {
            hash = (hash ^ u64::from(logit.to_bits())).wrapping_mul(0x0100_0000_01b3);
        }
    }
    assert_eq!(hash, 0xd142_5045_31e5_3f38, "{hash:#018x}");
}
