//! As much of .safetensors as a trace of data/traces needs: 8 bytes with the length of a JSON
//! header, the header, the tensors. A program for any file takes a JSON parser.
use crate::Error;
use std::ops::Range;

pub struct Trace {
    bytes: Vec<u8>,
    header: String,
}

pub struct Entry {
    pub shape: [usize; 3],
    range: Range<usize>,
}

impl Trace {
    pub fn read(path: &str) -> Result<Trace, Error> {
        let bytes = std::fs::read(path).map_err(|error| Error(format!("{path}: {error}")))?;
        let length = bytes.get(..8).map(|b| u64::from_le_bytes(b.try_into().unwrap()) as usize);
        let header = length.and_then(|n| bytes.get(8..8usize.checked_add(n)?));
        let header = header.ok_or_else(|| Error(format!("{path}: is no safetensors file")))?;
        let header = String::from_utf8_lossy(header).replace(' ', "");
        Ok(Trace { bytes, header })
    }

    /// A float16 tensor of three axes.
    pub fn entry(&self, name: &str) -> Result<Entry, Error> {
        self.find(name).ok_or_else(|| Error(format!("no float16 tensor {name} of three axes")))
    }

    pub fn data(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.range.clone()]
    }

    fn find(&self, name: &str) -> Option<Entry> {
        let begin = self.header.find(&format!("\"{name}\":{{\"dtype\":\"F16\""))?;
        let text = &self.header[begin..];
        let shape: [usize; 3] = numbers(text, "\"shape\":[")?.try_into().ok()?;
        let offsets = numbers(text, "\"data_offsets\":[")?;
        let first = self.bytes.len() - self.data_bytes()?;
        let range = first + *offsets.first()?..first.checked_add(*offsets.get(1)?)?;
        let fits = range.end <= self.bytes.len() && range.len() == 2 * shape.iter().product::<usize>();
        fits.then_some(Entry { shape, range })
    }

    fn data_bytes(&self) -> Option<usize> {
        let length = u64::from_le_bytes(self.bytes[..8].try_into().ok()?) as usize;
        self.bytes.len().checked_sub(8 + length)
    }
}

/// The list of numbers behind the first `key`.
fn numbers(text: &str, key: &str) -> Option<Vec<usize>> {
    let list = &text[text.find(key)? + key.len()..];
    list[..list.find(']')?].split(',').map(|number| number.parse().ok()).collect()
}
