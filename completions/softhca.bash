# bash completion for softhca
_softhca()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local cmd=${COMP_WORDS[1]} program= i
	local job='--addr --check --check-json --devices --explain --faults --faults-log --iwarp --iwarp=both --iwarp=first --loss --mpa-crc --part-id --pcap --same-host --seed --sockets --trace --wire'
	local common='--help --usage --version'

	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		COMPREPLY=($(compgen -W 'run env cdi devices doctor explain stat trace --help --version' -- "$cur"))
		return
	fi
	# From the program's name on, the program's own completion.
	if [[ $cmd == run ]]; then
		for ((i = 2; i < COMP_CWORD; i++)); do
			case ${COMP_WORDS[i]} in
			--addr | --check-json | --devices | --faults | --faults-log | --loss | --part-id | --pcap | --same-host | --seed | --trace)
				((++i))
				;;
			--)
				program=$((i + 1))
				break
				;;
			-*) ;;
			*)
				program=$i
				break
				;;
			esac
		done
		if [[ $program ]] && declare -F _command_offset >/dev/null; then
			_command_offset "$program"
			return
		fi
	fi
	case $prev in
	--addr)
		COMPREPLY=($(compgen -W "$(ip -o addr show up 2>/dev/null |
			awk '{ sub("/.*", "", $4); print $4 }')" -- "$cur"))
		return
		;;
	--devices)
		COMPREPLY=($(compgen -W "$(ls /sys/class/net 2>/dev/null)" -- "$cur"))
		return
		;;
	--check-json | --faults | --faults-log | --pcap)
		compopt -o filenames 2>/dev/null
		COMPREPLY=($(compgen -f -- "$cur"))
		return
		;;
	--libdir | --trace)
		compopt -o filenames 2>/dev/null
		COMPREPLY=($(compgen -d -- "$cur"))
		return
		;;
	--html | --perfetto | --pcapng)
		compopt -o filenames 2>/dev/null
		COMPREPLY=($(compgen -f -- "$cur"))
		return
		;;
	--loss | --seed | --qp | --wr | --since | --rows | --port) return ;;
	--peer | -p)
		COMPREPLY=($(compgen -A hostname -- "$cur"))
		return
		;;
	--same-host)
		COMPREPLY=($(compgen -W 'auto copy udp' -- "$cur"))
		return
		;;
	--format)
		COMPREPLY=($(compgen -W 'sh github docker json k8s' -- "$cur"))
		return
		;;
	--part-id)
		COMPREPLY=($(compgen -W '4129' -- "$cur"))
		return
		;;
	esac
	case $cmd in
	run) COMPREPLY=($(compgen -W "$job $common --" -- "$cur"))
		[[ $cur == -* ]] || COMPREPLY+=($(compgen -c -- "$cur")) ;;
	env) COMPREPLY=($(compgen -W "--format --libdir $job $common" -- "$cur")) ;;
	cdi) COMPREPLY=($(compgen -W "--libdir $job $common" -- "$cur")) ;;
	devices) COMPREPLY=($(compgen -W "--json $common" -- "$cur")) ;;
	explain) COMPREPLY=($(compgen -W "--list $common $(softhca explain --list 2>/dev/null)" -- "$cur")) ;;
	stat) COMPREPLY=($(compgen -W "--interval --json --pid --prometheus --sort $common" -- "$cur")) ;;
	trace) compopt -o filenames 2>/dev/null
		COMPREPLY=($(compgen -W "--html --pcapng --perfetto --qp --rows --since --wr $common" -- "$cur"))
		[[ $cur == -* ]] || COMPREPLY+=($(compgen -d -- "$cur")) ;;
	doctor) COMPREPLY=($(compgen -W "--json --peer --port $common" -- "$cur"))
		[[ $cur == -* ]] || COMPREPLY+=($(compgen -c -- "$cur")) ;;
	esac
}
complete -F _softhca softhca
