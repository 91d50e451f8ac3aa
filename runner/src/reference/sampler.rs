//! Picking the next token.
//!
//! Temperature 0 takes the largest logit, the lowest id among equals. Above 0 the weights
//! `exp((logit - largest) / temperature)` are summed in id order and the first id whose
//! running sum exceeds `u * total` is taken. `u` has 24 random bits from SplitMix64 started
//! at the request's seed, one draw per token, so a request is reproducible at any
//! temperature.

/// Chooses tokens for one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    temperature: f32,
    random: SplitMix64,
}

impl Sampler {
    /// A sampler; the seed matters only for temperatures above 0.
    pub fn new(temperature: f32, seed: u64) -> Self {
        Self {
            temperature,
            random: SplitMix64 { state: seed },
        }
    }

    /// The next token, never `banned`.
    pub fn pick(&mut self, logits: &[f32], banned: Option<u32>) -> u32 {
        let best = greedy(logits, banned);
        if self.temperature <= 0.0 {
            return best;
        }
        let largest = logits[best as usize];
        let weight = |(id, logit): (usize, &f32)| {
            if banned == Some(id as u32) {
                0.0
            } else {
                libm::expf((logit - largest) / self.temperature)
            }
        };
        let mut total = 0.0f32;
        for weight in logits.iter().enumerate().map(weight) {
            total += weight;
        }
        let threshold = self.random.unit() * total;
        let mut sum = 0.0f32;
        for (id, weight) in logits.iter().enumerate().map(weight).enumerate() {
            sum += weight;
            if sum > threshold {
                return id as u32;
            }
        }
        // Only when u * total rounds up to the total itself.
        best
    }
}

fn greedy(logits: &[f32], banned: Option<u32>) -> u32 {
    let mut best: Option<(u32, f32)> = None;
    for (id, logit) in (0u32..).zip(logits) {
        if banned != Some(id) && best.is_none_or(|(_, largest)| *logit > largest) {
            best = Some((id, *logit));
        }
    }
    best.map_or(0, |(id, _)| id)
}

/// Steele, Lea and Flood's SplitMix64: a counter through a mixing function.
#[derive(Debug, Clone)]
struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..1` with 24 bits, each of which an `f32` can hold exactly.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 16_777_216.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_go_to_the_lowest_id() {
        assert_eq!(Sampler::new(0.0, 0).pick(&[1.0, 3.0, 3.0, 2.0], None), 1);
        assert_eq!(Sampler::new(0.0, 0).pick(&[1.0, 3.0, 3.0, 2.0], Some(1)), 2);
        assert_eq!(Sampler::new(0.0, 0).pick(&[-5.0], None), 0);
    }

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = SplitMix64 { state: 1_234_567 };
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn a_seed_gives_its_sequence_and_the_shares_follow_the_weights() {
        let draw = |seed: u64| {
            let mut sampler = Sampler::new(1.0, seed);
            (0..4000)
                .map(|_| sampler.pick(&[0.0, libm::logf(3.0), 9.0], Some(2)))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let ones = draw(7).iter().filter(|id| **id == 1).count();
        assert!(
            (2900..3100).contains(&ones),
            "{ones} of 4000, expected about 3000"
        );
        assert!(!draw(7).contains(&2), "a banned token was drawn");
    }

    #[test]
    fn a_vanishing_temperature_is_greedy() {
        assert_eq!(Sampler::new(1e-30, 3).pick(&[1.0, 2.0, 1.5], None), 1);
    }
}
