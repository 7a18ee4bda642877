// SPDX-License-Identifier: GPL-2.0

//! `profile SHORT LONG MESSAGES` computes the instructions per message of each kernel function from
//! two runs, the second of which has MESSAGES more messages. A run is a folder with `counts.txt`,
//! which the plugin has written, and `kallsyms.txt`. The counts can have any other unit.

use rustc_demangle::demangle;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Number of functions in the table; the rest is summed up in one line.
const LISTED: usize = 80;

/// Bytes from the last function of the kernel to the end of its code, at most.
const LAST_FUNCTION: u64 = 1 << 20;

/// Counts by function.
type Counts = BTreeMap<String, f64>;

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Parses kallsyms. Returns the functions of a kernel by address.
fn symbols(text: &str) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(address), Some("t" | "T" | "w" | "W"), Some(name)) =
            (words.next(), words.next(), words.next())
        {
            let module = words.next().unwrap_or("");
            if let Ok(address) = u64::from_str_radix(address, 16) {
                let name = format!("{:#} {module}", demangle(name));
                found.insert(address, name.trim_end().to_owned());
            }
        }
    }
    found
}

/// Reads the counts of a run.
fn counts(folder: &Path) -> Result<Counts, String> {
    let symbols = symbols(&read(&folder.join("kallsyms.txt"))?);
    let mut counts = Counts::new();
    for line in read(&folder.join("counts.txt"))?.lines() {
        let (address, count) = line
            .split_once(' ')
            .ok_or("counts.txt: a line of one word")?;
        let address = u64::from_str_radix(address, 16).map_err(|error| error.to_string())?;
        let count: f64 = count.parse().map_err(|_| "counts.txt: no number")?;
        let name = match symbols.range(..=address).next_back() {
            _ if address == 0 => "user space",
            Some((start, name)) if address - start < LAST_FUNCTION => name,
            _ => "unknown",
        };
        *counts.entry(name.to_owned()).or_default() += count;
    }
    Ok(counts)
}

/// Returns the lines of the table.
fn table(short: &Counts, long: &Counts, messages: f64) -> Vec<String> {
    let mut rows: Vec<(f64, &str)> = long
        .iter()
        .map(|(name, count)| {
            let before = short.get(name).copied().unwrap_or(0.0);
            ((count - before) / messages, name.as_str())
        })
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let all: f64 = rows.iter().map(|row| row.0).sum();
    let rest: f64 = rows.iter().skip(LISTED).map(|row| row.0).sum();
    let mut lines = vec![format!("{all:>10.0}         all")];
    let listed = rows.iter().take(LISTED).copied();
    for (count, name) in listed.chain([(rest, "the rest")]) {
        lines.push(format!(
            "{count:>10.0} {:>5.1} % {name}",
            100.0 * count / all
        ));
    }
    lines
}

fn run() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [short, long, messages] = arguments.as_slice() else {
        return Err("usage: profile SHORT LONG MESSAGES".into());
    };
    let messages: f64 = match messages.parse() {
        Ok(messages) if messages > 0.0 => messages,
        _ => return Err(format!("{messages} is no number of messages")),
    };
    let (short, long) = (counts(Path::new(short))?, counts(Path::new(long))?);
    for line in table(&short, &long, messages) {
        println!("{line}");
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("profile: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_one_run_from_the_other() {
        let run =
            |pairs: &[(&str, f64)]| pairs.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect();
        let (short, long): (Counts, Counts) = (
            run(&[("boot", 1000.0), ("send", 100.0)]),
            run(&[("boot", 1000.0), ("send", 300.0), ("late", 50.0)]),
        );
        let lines = table(&short, &long, 10.0);
        let words: Vec<Vec<&str>> = lines
            .iter()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(words[0], ["25", "all"]);
        assert_eq!(words[1], ["20", "80.0", "%", "send"]);
        assert_eq!(words[2], ["5", "20.0", "%", "late"]);
        assert_eq!(words[3], ["0", "0.0", "%", "boot"]);
    }

    #[test]
    fn names_functions_by_their_start() {
        let found = symbols("ffff0010 T first\nffff0020 t second [rrxe]\nffff0018 D data\n");
        let at = |address| {
            found
                .range(..=address)
                .next_back()
                .map(|(_, name)| name.as_str())
        };
        assert_eq!(at(0xffff_0019), Some("first"));
        assert_eq!(at(0xffff_0020), Some("second [rrxe]"));
        assert_eq!(at(0xffff_000f), None);
    }
}
