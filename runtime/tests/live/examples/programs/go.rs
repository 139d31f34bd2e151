//! Go: all examples of the client's README in one program, in a module that takes the client as the README says.

use std::process::Command;

use super::{on, succeeds};
use crate::clients::{folder, go, unless_missing};
use crate::examples::blocks_of;
use crate::support::cluster::Cluster;

/// The document whose shell commands make the module, too.
pub const MODULE: &str = "clients/go/README.md";

/// How the blocks begin, in the order in which the program has them.
const BEGINS: [&str; 7] =
    ["import ", "client, err := ", "lock, err := ", "roots := ", "record, err := ", "view, err := ", "watcher := "];

/// A client whose watches end with their first event.
const WATCHING: &str = "
type watching struct {
	*palisade.Client
	end context.CancelFunc
}
type watcher struct {
	*palisade.Watcher
	end context.CancelFunc
}
func (w watching) Watch(ctx context.Context, options palisade.WatchOptions) watcher {
	return watcher{w.Client.Watch(ctx, options), w.end}
}
func (w watcher) Next() bool {
	told := w.Watcher.Next()
	if told { w.end() }
	return told
}
";

#[test]
fn go_examples_run_as_printed() {
    unless_missing(go(), |_| {
        let cluster = Cluster::start_calm(3);
        let directory = tempfile::tempdir().unwrap();
        let mut blocks = blocks_of(MODULE, "go");
        blocks.sort_by_key(|block| BEGINS.iter().position(|begins| block.text.starts_with(begins)));
        let begins = blocks.iter().zip(BEGINS).all(|(block, begins)| block.text.starts_with(begins));
        assert!(begins && blocks.len() == BEGINS.len(), "other blocks than {BEGINS:?}");
        let [import, first, second, third, records, shown, watched] = &blocks[..] else { unreachable!() };
        let program = format!(
            "package main\n\n{}\nimport (\n\"context\"\n\"crypto/tls\"\n\"crypto/x509\"\n\"errors\"\n\"fmt\"\n\"log\"\n\"time\"\n)\n\n\
             var tokens []uint64\n\
             func runJob(ctx context.Context, token uint64) error {{\ntokens = append(tokens, token)\nreturn ctx.Err()\n}}\n\
             func first(ctx context.Context) error {{\n{}\nreturn err\n}}\n\
             func second(ctx context.Context, client *palisade.Client) error {{\n{}\n\
             tokens = append(tokens, lock.Token())\nreturn nil\n}}\n\
             func third(endpoints, token string, pem []byte) (*palisade.Client, error) {{\n{}\nreturn client, err\n}}\n\
             func records(ctx context.Context, client *palisade.Client, lock *palisade.Lock) error {{\n{}\n\
             if version == 0 {{ log.Fatal(err) }}\nreturn err\n}}\n\
             func shown(ctx context.Context, client *palisade.Client) error {{\n{}\nreturn nil\n}}\n\
             func watched(ctx context.Context, client watching) {{\n{}\n\
             if !errors.Is(watcher.Err(), context.Canceled) {{ log.Fatal(watcher.Err()) }}\n}}\n\
             {WATCHING}\
             func main() {{\n\
             ctx := context.Background()\n\
             if err := first(ctx); err != nil {{ log.Fatal(err) }}\n\
             client, err := palisade.NewClient(\"127.0.0.1:7401\", palisade.Options{{}})\n\
             if err != nil {{ log.Fatal(err) }}\n\
             if err := second(ctx, client); err != nil {{ log.Fatal(err) }}\n\
             if _, err := third(\"127.0.0.1:7401\", \"secret\", nil); err != nil {{ log.Fatal(err) }}\n\
             guarded := func(ctx context.Context, lock *palisade.Lock) error {{ return records(ctx, client, lock) }}\n\
             if err := client.Do(ctx, \"report\", palisade.LockOptions{{}}, guarded); err != nil {{ log.Fatal(err) }}\n\
             if err := shown(ctx, client); err != nil {{ log.Fatal(err) }}\n\
             soon, cancel := context.WithTimeout(ctx, 30*time.Second)\n\
             defer cancel()\n\
             watched(soon, watching{{client, cancel}})\n\
             if len(tokens) != 2 || tokens[0] >= tokens[1] {{ log.Fatal(fmt.Sprint(tokens)) }}\n}}\n",
            import.text, first.text, second.text, third.text, records.text, shown.text, watched.text
        );
        std::fs::write(directory.path().join("main.go"), on(&cluster, &program)).unwrap();
        let module = &blocks_of(MODULE, "sh")[0];
        let client = format!("={}", folder("go").display());
        let commands = module.text.replace("=../palisade/clients/go", &client);
        succeeds(module, Command::new("sh").args(["-e", "-c", &commands]).current_dir(directory.path()));
        succeeds(first, Command::new("go").args(["run", "."]).current_dir(directory.path()).env("GOFLAGS", "-mod=mod"));
    });
}
