//! Generated text that brings a prompt to a length: words of a language in an order
//! drawn from a seed, so that no two prompts share more than words.
//!
//! The text of a seed is one endless stream; a prompt takes its first characters. So
//! the number of characters is all that has to be written down to build it again, and
//! more characters never mean other ones.

use sha2::{Digest, Sha256};

use crate::plan::Language;
use crate::suite::{Message, SLOT};

/// Most characters that a prompt is filled with.
pub const MAX_CHARS: u64 = 16 << 20;
/// Words on a line.
const WORDS_PER_LINE: u64 = 12;

/// How a prompt is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filling {
    /// Language of the words.
    pub language: Language,
    /// Characters (Unicode scalar values) of the stream. A line feed comes behind
    /// each of its parts.
    pub chars: u64,
}

/// The first `chars` characters of the stream of `seed`: words with a space or, after
/// every twelfth, a line feed between them. Word i (from 0) is number `n mod 128` of
/// the language's list, n being bytes 2(i mod 16) and the next, big-endian, of
/// SHA-256(seed, 0x00, i / 16 in decimal).
pub fn stream(language: Language, seed: &str, chars: u64) -> String {
    let words = words(language);
    let mut out = String::new();
    let mut left = chars;
    let mut block = [0u8; 32];
    for i in 0.. {
        if left == 0 {
            break;
        }
        let at = (i % 16) as usize * 2;
        if at == 0 {
            let mut hash = Sha256::new();
            hash.update(seed.as_bytes());
            hash.update([0]);
            hash.update((i / 16u64).to_string().as_bytes());
            block = hash.finalize().into();
        }
        let n = usize::from(u16::from_be_bytes([block[at], block[at + 1]]));
        let behind = match (i + 1) % WORDS_PER_LINE {
            0 => '\n',
            _ => ' ',
        };
        for c in words[n % words.len()].chars().chain([behind]) {
            if left == 0 {
                break;
            }
            out.push(c);
            left -= 1;
        }
    }
    out
}

/// The messages with the text in the one that holds the prefix slot: `before` percent
/// of it behind the first line (the slot's), the rest ahead of the last line (the
/// question). Without a line feed behind the slot, all of it comes last.
pub fn fill(messages: &[Message], filling: Filling, seed: &str, before: u8) -> Vec<Message> {
    let mut out = messages.to_vec();
    let Some(message) = out.iter_mut().find(|m| m.content.contains(SLOT)) else {
        return out;
    };
    if filling.chars == 0 {
        return out;
    }
    let text = stream(filling.language, seed, filling.chars);
    let first = filling.chars.saturating_mul(u64::from(before.min(100))) / 100;
    let cut = text
        .char_indices()
        .nth(usize::try_from(first).unwrap_or(usize::MAX))
        .map_or(text.len(), |(i, _)| i);
    let (ahead, behind) = text.split_at(cut);
    let content = &message.content;
    let slot_end = content.find(SLOT).map_or(0, |i| i + SLOT.len());
    let Some(top) = content[slot_end..].find('\n').map(|i| slot_end + i + 1) else {
        message.content = format!("{content}\n{text}");
        return out;
    };
    let bottom = content.rfind('\n').map_or(top, |i| i + 1).max(top);
    let line = |text: &str| match text {
        "" => String::new(),
        text => format!("{text}\n"),
    };
    message.content = format!(
        "{}{}{}{}{}",
        &content[..top],
        line(ahead),
        &content[top..bottom],
        line(behind),
        &content[bottom..]
    );
    out
}

/// 128 words.
fn words(language: Language) -> [&'static str; 128] {
    match language {
        Language::En => EN,
        Language::Tr => TR,
    }
}

#[rustfmt::skip]
const EN: [&str; 128] = [
    "harbour", "garden", "window", "market", "winter", "summer", "letter", "river", "bridge",
    "mountain", "village", "station", "paper", "silver", "golden", "quiet", "narrow", "distant",
    "morning", "evening", "thunder", "meadow", "forest", "island", "captain", "teacher",
    "painter", "farmer", "baker", "sailor", "doctor", "merchant", "carries", "follows", "answers",
    "repairs", "borrows", "gathers", "measures", "crosses", "opens", "closes", "counts", "paints",
    "writes", "reads", "sells", "builds", "under", "behind", "between", "across", "toward",
    "beside", "without", "during", "after", "before", "above", "below", "inside", "around",
    "near", "beyond", "seldom", "often", "always", "never", "quickly", "slowly", "carefully",
    "gently", "almost", "hardly", "perhaps", "surely", "together", "apart", "again", "once",
    "copper", "timber", "basket", "lantern", "blanket", "kettle", "ladder", "hammer", "mirror",
    "candle", "pocket", "button", "feather", "pebble", "ribbon", "saddle", "orange", "yellow",
    "purple", "crimson", "scarlet", "amber", "violet", "ivory", "bright", "gloomy", "steady",
    "hollow", "gentle", "bitter", "sudden", "eager", "and", "but", "because", "although", "while",
    "until", "whether", "therefore", "however", "meanwhile", "every", "several", "another",
    "neither", "whole", "half",
];

#[rustfmt::skip]
const TR: [&str; 128] = [
    "liman", "bahçe", "pencere", "çarşı", "kış", "yaz", "mektup", "nehir", "köprü", "dağ", "köy",
    "istasyon", "kağıt", "gümüş", "altın", "sessiz", "dar", "uzak", "sabah", "akşam",
    "gökgürültüsü", "çayır", "orman", "ada", "kaptan", "öğretmen", "ressam", "çiftçi", "fırıncı",
    "denizci", "doktor", "tüccar", "taşıyor", "izliyor", "yanıtlıyor", "onarıyor", "ödünçalıyor",
    "topluyor", "ölçüyor", "geçiyor", "açıyor", "kapatıyor", "sayıyor", "boyuyor", "yazıyor",
    "okuyor", "satıyor", "kuruyor", "altında", "arkasında", "arasında", "karşısında", "yönünde",
    "yanında", "olmadan", "boyunca", "sonra", "önce", "üstünde", "aşağıda", "içinde",
    "çevresinde", "yakınında", "ötesinde", "nadiren", "sıksık", "daima", "asla", "hızla",
    "yavaşça", "dikkatle", "usulca", "neredeyse", "güçlükle", "belki", "mutlaka", "birlikte",
    "ayrı", "yeniden", "birkez", "bakır", "kereste", "sepet", "fener", "battaniye", "çaydanlık",
    "merdiven", "çekiç", "ayna", "mum", "cep", "düğme", "tüy", "çakıltaşı", "kurdele", "eyer",
    "turuncu", "sarı", "mor", "kızıl", "allı", "kehribar", "menekşe", "fildişi", "parlak",
    "kasvetli", "durgun", "oyuk", "yumuşak", "acı", "ani", "istekli", "ve", "ama", "çünkü",
    "gerçi", "iken", "kadar", "acaba", "dolayısıyla", "ancak", "buarada", "her", "birkaç",
    "başka", "hiçbiri", "bütün", "yarım",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_what_its_seed_says_to_the_character() {
        for language in [Language::En, Language::Tr] {
            let long = stream(language, "a", 1000);
            assert_eq!(long.chars().count(), 1000);
            for n in [0, 1, 7, 200, 999] {
                let short = stream(language, "a", n);
                assert_eq!(short.chars().count() as u64, n);
                assert!(long.starts_with(&short));
            }
            assert_ne!(long, stream(language, "b", 1000));
            let words: std::collections::BTreeSet<&str> = long.split_whitespace().collect();
            assert!(words.len() > 50, "{words:?}");
        }
        assert!(stream(Language::Tr, "a", 1000).contains('ı'));
    }

    #[test]
    fn text_comes_behind_the_slot_and_ahead_of_the_question() {
        let message = |content: &str| Message {
            role: "user".into(),
            content: content.into(),
        };
        let messages = [message("a"), message("# {{prefix}}\nx: 1\ny: 2\nQ: x")];
        let filling = |chars| Filling {
            language: Language::En,
            chars,
        };
        let text = stream(Language::En, "s", 10);
        let at = |before| fill(&messages, filling(10), "s", before)[1].content.clone();
        assert_eq!(
            at(100),
            format!("# {{{{prefix}}}}\n{text}\nx: 1\ny: 2\nQ: x")
        );
        assert_eq!(at(0), format!("# {{{{prefix}}}}\nx: 1\ny: 2\n{text}\nQ: x"));
        let (a, b) = text.split_at(5);
        assert_eq!(
            at(50),
            format!("# {{{{prefix}}}}\n{a}\nx: 1\ny: 2\n{b}\nQ: x")
        );
        assert_eq!(fill(&messages, filling(0), "s", 50), messages);
        let bare = [message("{{prefix}} go")];
        assert_eq!(
            fill(&bare, filling(10), "s", 50)[0].content,
            format!("{{{{prefix}}}} go\n{text}")
        );
    }
}
