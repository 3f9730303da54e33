# SPDX-License-Identifier: Apache-2.0
# Prints a TOML file, or a template of one, without the runtime; the default as in the backup.
# Arguments: the file with an x at its end, and the backup. Exit status 1 if it cannot be read.
function trimmed(line) { gsub(/^[ \t]+|[ \t\r]+$/, "", line); return line }
function is_aside(line) { line = trimmed(line); return line == "" || line ~ /^#/ }
function is_mark(line) { return trimmed(line) ~ /^# gpushare: `gpushare runtime unconfigure/ }
function is_header(line) { return line ~ /^[ \t]*\[.+\][ \t\r]*(#.*)?$/ }
function name_of(line) {
    if (line ~ /^[ \t]*\[\[/) return ""
    sub(/^[ \t]*\[/, "", line); sub(/\][^]]*$/, "", line); gsub(/["\047 \t]/, "", line)
    return line
}
function is_default(line) { return line ~ /^[ \t]*default_runtime(_name)?[ \t]*=[ \t]*["\047]/ }
function string_in(line) {
    match(line, /=[ \t]*("[^"]*"|\047[^\047]*\047)/)
    line = substr(line, RSTART + 1, RLENGTH - 1); sub(/^[ \t]*/, "", line)
    return line
}
# Remove the lines of a table, and the mark before it; comments before the next table are its.
function cut(start, end, i) {
    while (end > start && is_aside(lines[end])) end--
    if (start > 1 && is_mark(lines[start - 1])) {
        start--
        if (start > 1 && trimmed(lines[start - 1]) == "") start--
    }
    for (i = start; i <= end; i++) gone[i] = 1
}
function end_of(start, i) { for (i = start + 1; i <= n && !is_header(lines[i]); ) i++; return i - 1 }
function is_ours(start, i) { # the handler that only keeps the built-in one of containerd
    if (!is_mark(lines[start - 1])) return 0
    for (i = start + 1; i <= end_of(start); i++)
        if (!is_aside(lines[i]) && trimmed(lines[i]) !~ /^runtime_type = .io.containerd.runc.v2.$/)
            return 0
    return 1
}
function is_empty(start, i) {
    for (i = start + 1; i <= end_of(start); i++) if (!gone[i] && !is_aside(lines[i])) return 0
    return 1
}
function of_podman(i, line) {
    line = lines[i]
    if (table == "engine" && line ~ /^[ \t]*runtime[ \t]*=[ \t]*["\047]gpushare["\047]/) gone[i] = 1
    if (table == "engine.runtimes" && line ~ /^[ \t]*"?gpushare"?[ \t]*=[ \t]*\[.*\]/) gone[i] = 1
    if (table != "engine" || line !~ /^[ \t]*runtime_supports_json[ \t]*=[ \t]*\[.*\]/) return
    gsub(/,?[ \t]*"gpushare(-runtime)?"/, "", line)
    lines[i] = line
    sub(/^[^[]*\[/, "", line); sub(/\].*$/, "", line)
    gsub(/"(crun|runc|kata|runsc|youki|krun|ocijail|crun-vm)"/, "", line); gsub(/[, \t]/, "", line)
    if (line == "") gone[i] = 1 # the built-in list of podman
}
FNR == 1 && NR != 1 { second = 1 }
second { if (is_default($0) && string_in($0) !~ /gpushare/) old = string_in($0); next }
{ lines[++n] = $0 }
END {
    sub(/x$/, "", lines[n])
    for (i = 1; i <= n; i++) {
        if (is_header(lines[i])) {
            table = name_of(lines[i])
            if (table ~ /\.runtimes\.gpushare(\.|$)/ || (table ~ /\.runtimes\.runc$/ && is_ours(i)))
                cut(i, end_of(i))
        } else if (is_default(lines[i]) && string_in(lines[i]) ~ /^.gpushare.$/) {
            if (old != "") sub(/["\047]gpushare["\047]/, old, lines[i])
            else { gone[i] = 1; if (is_header(lines[i - 1]) && is_empty(i - 1)) gone[i - 1] = 1 }
        } else of_podman(i)
    }
    for (i = n; i >= 1; i--)
        if (is_header(lines[i]) && name_of(lines[i]) ~ /^engine(\.runtimes)?$/ && is_empty(i))
            cut(i, i)
    for (i = 1; i <= n; i++) if (!gone[i] && !is_mark(lines[i])) printf "%s%s", lines[i], i < n ? "\n" : ""
}