"""The scripts: each hands the words to ``dsh completion --words`` and offers what comes back."""

from __future__ import annotations

_BASH = """\
# bash completion for dsh
_dsh() {
    local word here="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS=$'\\t' read -r word _; do
        case "$word" in
            :file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$here") ;;
            :folder) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$here") ;;
            # bash replaces only what follows the last "=".
            --*=*) COMPREPLY+=("$(printf %q "${word#*=}")") ;;
            *) COMPREPLY+=("$(printf %q "$word")") ;;
        esac
    done < <("${COMP_WORDS[0]}" completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _dsh dsh
"""
_ZSH = """\
#compdef dsh
# zsh completion for dsh
_dsh() {
    local line
    local -a words_here
    while IFS= read -r line; do
        case "$line" in
            :file*) _files ;;
            :folder*) _files -/ ;;
            *) words_here+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}") ;;
        esac
    done < <("${words[1]}" completion --words "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    if (( ${#words_here} )); then _describe -t words dsh words_here; fi
}
if [[ "${funcstack[1]}" == _dsh ]]; then _dsh "$@"; else compdef _dsh dsh; fi
"""
_FISH = """\
# fish completion for dsh
function __dsh_words
    set -l words (commandline -opc)
    set -l here (commandline -ct)
    for line in ($words[1] completion --words $words[2..-1] "$here" 2>/dev/null)
        switch $line
            case ':file*'
                __fish_complete_path $here
            case ':folder*'
                __fish_complete_directories $here
            case '*'
                echo $line
        end
    end
end
complete -c dsh -f -a '(__dsh_words)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""The script of each shell."""
