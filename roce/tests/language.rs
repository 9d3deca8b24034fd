//! One concept, one term: phrases in the column "not" of docs/GLOSSARY.md must not occur in the repository. A phrase is
//! found in prose (`two words`), in names (`two_words`, `TwoWords`, `TWO_WORDS`), and across the end of a line.

mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

const GLOSSARY: &str = "docs/GLOSSARY.md";
/// Suffixes of the files that are read. Files without a suffix are read only if they are scripts.
const TEXTS: &[&str] = &["rs", "md", "sh", "toml", "c", "h", "py", "txt", "lua", "html", "supp"];
/// Directory of the captures, which is not read.
const CAPTURES: &str = "roce/tests/pcap/";

/// Forbidden phrases, as lower-case words, and the term to use instead of each.
type Forbidden = BTreeMap<Vec<String>, String>;

/// Returns the phrases in the last column of each table with the header `term | meaning | source | not`.
fn forbidden(glossary: &str) -> Forbidden {
    let mut phrases = Forbidden::new();
    let mut is_terms = false;
    for line in glossary.lines() {
        let row = line.trim().strip_prefix('|').and_then(|line| line.strip_suffix('|'));
        let Some(cells) = row.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()) else {
            is_terms = false;
            continue;
        };
        is_terms |= cells == ["term", "meaning", "source", "not"];
        let [term, _, _, not] = cells[..] else {
            assert!(!is_terms, "{GLOSSARY}: a row has four cells: {line}");
            continue;
        };
        if is_terms && term != "term" && !term.starts_with("---") {
            for phrase in
                not.split(',').map(|phrase| words(phrase).into_iter().map(|word| word.lower).collect())
            {
                phrases.insert(phrase, term.to_owned());
            }
        }
    }
    phrases.remove(&Vec::new());
    phrases
}

struct Word {
    lower: String,
    line: usize,
    /// True if this word follows the previous word directly, or after only spaces, underscores, hyphens or a line end.
    follows: bool,
}

fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let (mut line, mut end) = (1, 0);
    for range in word_ranges(text) {
        let gap = &text[end..range.start];
        line += gap.matches('\n').count();
        words.push(Word { lower: text[range.clone()].to_lowercase(), line, follows: is_join(gap) });
        end = range.end;
    }
    words
}

/// Returns the runs of letters or of digits. A run also ends before `C` in `camelCase`, and before the second `T` in
/// `RTOTimer`.
fn word_ranges(text: &str) -> Vec<Range<usize>> {
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, (start, c)) in chars.iter().enumerate().filter(|(_, (_, c))| c.is_alphanumeric()) {
        let end = start + c.len_utf8();
        let before = at.checked_sub(1).map_or(' ', |before| chars[before].1);
        let ends_capitals =
            c.is_uppercase() && chars.get(at + 1).is_some_and(|(_, after)| after.is_lowercase());
        let goes_on = before.is_alphanumeric()
            && before.is_numeric() == c.is_numeric()
            && (before.is_uppercase() && !ends_capitals || !c.is_uppercase());
        match ranges.last_mut().filter(|_| goes_on) {
            Some(word) => word.end = end,
            None => ranges.push(*start..end),
        }
    }
    ranges
}

fn is_join(gap: &str) -> bool {
    let Some((before, after)) = gap.split_once('\n') else {
        return gap.chars().all(|c| " \t_-".contains(c));
    };
    let leaders = ["", "//", "///", "//!", "#", "*", ">", "--"];
    ["", "\\"].contains(&before.trim()) && leaders.contains(&after.trim_matches([' ', '\t']))
}

/// Returns line number and phrase of each occurrence in `text`.
fn occurrences<'a>(text: &str, forbidden: &'a Forbidden) -> Vec<(usize, &'a [String])> {
    let words = words(text);
    let mut found = Vec::new();
    for at in 0..words.len() {
        // `forbidden` is sorted, so phrases with the same first word are adjacent.
        let first = vec![words[at].lower.clone()];
        let same_first = forbidden.range(first.clone()..).take_while(|(phrase, _)| phrase[0] == first[0]);
        for (phrase, _) in same_first {
            let rest = words[at..].get(1..phrase.len());
            if rest.is_some_and(|rest| rest.iter().zip(&phrase[1..]).all(|(w, p)| w.follows && w.lower == *p))
            {
                found.push((words[at].line, &phrase[..]));
            }
        }
    }
    found
}

/// Returns path and content of each text, except the glossary.
fn texts() -> Vec<(String, String)> {
    let is_text = |path: &Path| match path.extension() {
        Some(suffix) => TEXTS.iter().any(|text| suffix == *text),
        None => fs::read(tree::workspace().join(path)).unwrap().starts_with(b"#!"),
    };
    let paths = tree::files("", |path| path != GLOSSARY && !path.starts_with(CAPTURES) && is_text(path));
    paths.iter().map(|path| (path.display().to_string(), tree::text(path))).collect()
}

fn glossary() -> Forbidden {
    forbidden(&tree::text(Path::new(GLOSSARY)))
}

#[test]
fn a_concept_has_one_term() {
    let forbidden = glossary();
    let texts = texts();
    let mut found = Vec::new();
    for (path, text) in &texts {
        let in_name = occurrences(path, &forbidden)
            .into_iter()
            .map(|(_, phrase)| (format!("{path}: its name"), phrase));
        let in_text = occurrences(text, &forbidden)
            .into_iter()
            .map(|(line, phrase)| (format!("{path}:{line}"), phrase));
        for (place, phrase) in in_name.chain(in_text) {
            found.push(format!("{place}: {:?}; say: {}", phrase.join(" "), forbidden[phrase]));
        }
    }
    assert!(
        found.is_empty(),
        "{} words that {GLOSSARY} has other terms for:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Returns the phrases of an example glossary, which are not in docs/GLOSSARY.md.
fn example() -> Forbidden {
    forbidden(
        "| a | b |\n|---|---|\n| not | terms |\n\n\
         | term | meaning | source | not |\n|---|---|---|---|\n\
         | plum, the | a \"fruit\" | | blue egg, marble |\n| pear | | | |\n",
    )
}

#[test]
fn texts_and_scripts_are_read() {
    let texts = texts();
    assert!(texts.len() >= 200, "only {} texts were found", texts.len());
    let has = |path: &str| texts.iter().any(|(text, _)| text == path);
    assert!(["README.md", "roce/src/psn.rs", "scripts/check.sh", "scripts/guest"].into_iter().all(has));
    assert!(!has(GLOSSARY) && !has("roce/tests/pcap/SUMMARY.txt") && !has(".gitignore"));
}

#[test]
fn the_glossary_is_read() {
    let phrases: Vec<(String, String)> =
        example().into_iter().map(|(phrase, term)| (phrase.join(" "), term)).collect();
    let plum = "plum, the".to_owned();
    assert_eq!(phrases, [("blue egg".to_owned(), plum.clone()), ("marble".to_owned(), plum)]);
    assert!(glossary().len() >= 20, "phrases of {GLOSSARY} were read: {:?}", glossary().keys());
}

#[test]
fn every_spelling_is_found() {
    let spellings = [
        "a blue egg.",
        "Blue  egg",
        "BLUE EGG",
        "a blue-egg",
        "is_blue_egg",
        "BLUE_EGG_BYTES",
        "BlueEgg",
        "blueEgg2",
        "NICBlueEgg",
        "marble",
        "`Marble`",
        "marble_bytes",
        "IsMarble64",
        "/// of a blue\n    /// egg",
        "# of a blue\n# egg",
        "\"a blue \\\n    egg\"",
    ];
    for text in spellings {
        assert_eq!(occurrences(text, &example()).len(), 1, "{text:?}");
    }
    let others =
        ["blue. Egg", "blue, egg", "blue\n\negg", "true blue eggs", "marbles", "blueegg", "remarble"];
    for text in others {
        assert_eq!(occurrences(text, &example()).len(), 0, "{text:?}");
    }
}

#[test]
fn the_line_of_an_occurrence_is_that_of_its_first_word() {
    let phrases = example();
    let found = occurrences("a\nmarble\n// blue\n// egg marble", &phrases);
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [2, 3, 4]);
}
