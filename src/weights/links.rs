//! Where a link leads, by the names alone: nothing is opened.

/// The kernel gives up after as many links.
const MOST: usize = 40;

/// What following a link within a folder comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Followed {
    /// A path in the folder; whether something lies there is another question.
    To(String),
    /// More links than the kernel would follow.
    Circle,
}

/// Follows a link, relative to the folder, through the links that `target_of` knows by
/// their paths. None when it leads out of the folder. Works on escaped text, in which
/// `/`, `.` and `..` stand for themselves.
pub(crate) fn follow<'a>(
    link: &'a str,
    target_of: impl Fn(&str) -> Option<&'a str>,
) -> Option<Followed> {
    let mut place: Vec<&str> = Vec::new();
    let mut ahead: Vec<&str> = link.rsplit('/').collect();
    let mut hops = 0;
    while let Some(part) = ahead.pop() {
        match part {
            "" | "." => continue,
            ".." => {
                place.pop()?;
                continue;
            }
            name => place.push(name),
        }
        if let Some(target) = target_of(&place.join("/")) {
            hops += 1;
            if hops > MOST {
                return Some(Followed::Circle);
            }
            if target.starts_with('/') {
                return None;
            }
            place.pop();
            ahead.extend(target.rsplit('/'));
        }
    }
    Some(Followed::To(place.join("/")))
}
