//! pariskv from Rust: embed TRACE INDEX. What c/embed.c does.
use pariskv::trace::Trace;
use pariskv::{Codec, Config, Dtype, Error, Index, Plan, Runtime, Shape, Tensor};

const QUERIES: usize = 8;
const HITS: usize = 100; // the default of the option k

fn run(trace: &str, index_path: &str) -> Result<(), Error> {
    let trace = Trace::read(trace)?;
    let (k, v, q) = (trace.entry("k")?, trace.entry("v")?, trace.entry("q")?);
    let ([h, n, d], [_, _, dv], [m, hq, _]) = (k.shape, v.shape, q.shape);
    let keys = Tensor::dense(trace.data(&k), Dtype::F16, &[h, n, d])?;
    let values = Tensor::dense(trace.data(&v), Dtype::F16, &[h, n, dv])?;
    let sample = Tensor::strided(trace.data(&q), Dtype::F16, &[hq, m, d], &[d, hq * d, 1])?;

    let runtime = Runtime::new()?;
    let device = runtime.open("cpu")?;
    let stream = device.stream()?;
    let mut config = Config::new("default")?;
    config.set("head_dim", d)?;
    config.set("value_dim", dv)?;
    let codec = Codec::fit(&device, &stream, &config, &keys, &sample, &values)?;
    let mut index = Index::new(&device, &codec, 1, n)?;
    index.append(&stream, 0, &keys, &values)?;
    index.save(&stream, index_path)?;

    let mut plan = Plan::new(&index, &config, hq)?;
    let source_keys = Tensor::dense(trace.data(&k), Dtype::F16, &[1, h, n, d])?;
    let source_values = Tensor::dense(trace.data(&v), Dtype::F16, &[1, h, n, dv])?;
    let shape = Shape { kv_heads: h, query_heads: hq, value_dim: dv, k: HITS };
    for query in trace.data(&q).chunks_exact(2 * hq * d).take(QUERIES) {
        let query = Tensor::dense(query, Dtype::F16, &[1, hq, d])?;
        let found = plan.step(&stream, &query, &source_keys, &source_values, shape)?;
        for row in &found.hits {
            let words = row.iter().map(|(at, score)| format!(" {at}:{:08x}", score.to_bits()));
            println!("hits{}", words.collect::<String>());
        }
        let words = found.output.iter().map(|value| format!(" {:08x}", value.to_bits()));
        println!("output{}", words.collect::<String>());
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 3 {
        eprintln!("usage: embed TRACE INDEX");
        std::process::exit(2);
    }
    if let Err(error) = run(&arguments[1], &arguments[2]) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
