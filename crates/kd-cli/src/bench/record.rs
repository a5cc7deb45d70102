//! Result files: what was measured, by which command, on what, when, and every sample.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use kd_tensor::Pool;
use kd_tensor::file::write_atomically;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value, json};

use crate::input;

/// A result file in the making.
#[derive(Debug, Clone)]
pub(crate) struct Record(Map<String, Value>);

impl Record {
    /// A record of `what` on the CPU, with this process's command, commit, date and machine.
    pub(crate) fn new(what: &str, pool: &Pool) -> Self {
        Self::on(what, machine(pool))
    }

    /// A record of `what` on `machine`.
    pub(crate) fn on(what: &str, machine: Value) -> Self {
        let mut record = Self(Map::new());
        record.set("what", what);
        record.set("command", command());
        record.set("commit", commit());
        record.set("date", date(SystemTime::now()));
        record.set("machine", machine);
        record
    }

    /// Sets a field.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    /// A field of the file at `path`, if that was written by the same command at the same commit on the same
    /// machine, with the same pages.
    pub(crate) fn earlier(&self, path: Option<&Path>, key: &str) -> Option<Value> {
        let mut found: Map<String, Value> = serde_json::from_slice(&input::bytes(path?).ok()?).ok()?;
        let same = self.goes_on(&found);
        found.remove(key).filter(|_| same)
    }

    /// Whether `found` was measured as this is. The pages can be another's under the same command, by a variable of the environment.
    fn goes_on(&self, found: &Map<String, Value>) -> bool {
        let alike = ["what", "command", "commit", "machine", "kv_cache_dtype"];
        alike.iter().all(|&key| found.get(key) == self.0.get(key))
    }

    /// Writes the file whole or not at all; without a path, nothing.
    pub(crate) fn write(&self, path: Option<&Path>) -> anyhow::Result<()> {
        let Some(path) = path else { return Ok(()) };
        let mut text = Vec::new();
        self.0.serialize(&mut Serializer::with_formatter(&mut text, Lines::default()))?;
        text.push(b'\n');
        write_atomically(path, &text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The command line, the program by its name alone.
fn command() -> String {
    std::iter::once("kd".to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}

/// The commit of the repository around the executable, marked when files differ from it; outside of one what `KD_COMMIT`
/// says, so that a copied executable is known as well, else null.
fn commit() -> Value {
    let git = |args: &[&str]| -> Option<String> {
        let folder = std::env::current_exe().ok()?.parent()?.to_owned();
        let output = Command::new("git").args(args).current_dir(folder).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return std::env::var("KD_COMMIT").map_or(Value::Null, Value::String);
    };
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|files| !files.is_empty());
    Value::String(if changed { format!("{commit} with changes") } else { commit })
}

/// JSON with a line for each field and for each entry of a field's list: readable, and a third of what a line a number takes.
#[derive(Debug, Default)]
struct Lines {
    depth: usize,
}

impl Lines {
    /// Levels that have lines of their own.
    const DEEP: usize = 2;

    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&self, writer: &mut W, first: bool) -> io::Result<()> {
        match (self.depth <= Self::DEEP, first) {
            (true, _) => {
                writer.write_all(if first { b"\n" } else { b",\n" })?;
                writer.write_all(&b"    "[..2 * self.depth])
            }
            (false, true) => Ok(()),
            (false, false) => writer.write_all(b", "),
        }
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.depth < Self::DEEP {
            writer.write_all(b"\n")?;
            writer.write_all(&b"    "[..2 * self.depth])?;
        }
        writer.write_all(bracket)
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }
}

fn machine(pool: &Pool) -> Value {
    json!({
        "cpu": cpu(),
        "architecture": std::env::consts::ARCH,
        "os": std::env::consts::OS,
        "cpus": std::thread::available_parallelism().map_or(1, usize::from),
        "threads": pool.threads(),
    })
}

/// The processor as the system names it; virtual machines leave a name out, so family and model with it.
pub(crate) fn cpu() -> String {
    describe(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn describe(info: &str) -> String {
    let field = |key: &str| {
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
    };
    match (field("model name"), field("cpu family"), field("model")) {
        (Some(name), Some(family), Some(model)) => format!("{name} (family {family} model {model})"),
        (Some(name), ..) => name,
        _ => format!("unknown {}", std::env::consts::ARCH),
    }
}

/// Day of a time in UTC, as 2026-11-29.
fn date(time: SystemTime) -> String {
    let days = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    // Years of the proleptic Gregorian calendar that begin in March, so that a leap day comes last.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + u64::from(month <= 2))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use serde::Serialize;
    use serde_json::ser::Serializer;
    use serde_json::{Value, json};

    use super::{Lines, Record, date, describe};

    #[test]
    fn a_list_has_a_line_for_each_entry() {
        let value = json!({"a": [{"b": [1, 2], "c": {}}, {"b": []}], "d": 1, "e": []});
        let mut text = Vec::new();
        value.serialize(&mut Serializer::with_formatter(&mut text, Lines::default())).expect("a value");
        let text = String::from_utf8(text).expect("JSON");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let entries = [r#"{"b": [1, 2], "c": {}},"#, r#"{"b": []}"#];
        assert_eq!(
            lines,
            ["{", r#""a": ["#, entries[0], entries[1], "],", r#""d": 1,"#, r#""e": ["#, "]", "}"]
        );
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
    }

    #[test]
    fn a_record_goes_on_with_one_of_the_same_pages_only() {
        let with = |dtype: &str| {
            let mut record = Record::on("rounds", json!({}));
            record.set("kv_cache_dtype", dtype);
            record
        };
        assert!(with("auto").goes_on(&with("auto").0));
        assert!(!with("fp8").goes_on(&with("auto").0));
        assert!(!with("auto").goes_on(&Record::on("rounds", json!({})).0));
    }

    #[test]
    fn a_processor_has_its_own_name() {
        let info = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor\t: 1\n";
        assert_eq!(describe(info), "Some CPU @ 2 GHz (family 6 model 207)");
        assert_eq!(describe("model name : Other"), "Other");
        assert!(describe("").starts_with("unknown "));
    }

    #[test]
    fn days_have_their_names() {
        let day = |days: u64| date(UNIX_EPOCH + Duration::from_secs(86_400 * days + 7));
        assert_eq!([day(0), day(58), day(59)], ["1970-01-01", "1970-02-28", "1970-03-01"]);
        assert_eq!([day(11_016), day(11_017)], ["2000-02-29", "2000-03-01"]);
        assert_eq!([day(20_786), day(20_819)], ["2026-11-29", "2027-01-01"]);
    }
}
