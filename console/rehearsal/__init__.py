"""The embedded practice node: a real SSH server on loopback and a practice GPU box behind it, to rehearse a redeploy on.

`practice` is what a console calls: start or attach, status, reset, stop. The server (`serve`, `node`) is a process of its own:
`sshd` and `link` are its door and its wire, `init` plays systemd over real processes, `standins` are the programs that a
laptop lacks, `seed` builds the sandbox ROOT (`layout`), `hub_process` serves the model, `faults` and `mishaps` let things go
wrong. Nothing of it reaches beyond loopback. Commands and paths are real: what an absolute path outside of ROOT names is
this machine's own, with the rights of the account that runs the practice.
"""
