# The derivations of the example: a toolbox that a small workshop makes of a list of words.
{ system }:
let
  make = import ./recipe.nix { inherit system; };

  # A plain source file: it is copied into the store and needs no build.
  words = ./src/words.txt;

  # A fixed-output derivation: its content is known beforehand, as a download's would be, but
  # its builder writes it by itself.
  alloy = make {
    name = "alloy.txt";
    outputHashMode = "flat";
    outputHashAlgo = "sha256";
    outputHash = builtins.hashString "sha256" "iron 98\ncarbon 2\n";
    script = ''
      say "melting iron and carbon"
      printf 'iron 98\ncarbon 2\n' > "$out"
    '';
  };

  # A chain: every pass over the blade needs the one before.
  grind =
    number:
    make {
      name = "blade-${toString number}";
      before = if number == 1 then alloy else grind (number - 1);
      inherit number;
      script = ''
        say "pass $number, on top of $before"
        pause 0.1
        { echo "pass $number"; echo "after $before"; } > "$out"
      '';
    };
  blade = grind 10;

  # A diamond: two halves of one ingot, joined again.
  ingot = make {
    name = "ingot";
    inherit alloy;
    script = ''
      say "casting"
      pause 0.3
      echo "cast of $alloy" > "$out"
    '';
  };
  half =
    side:
    make {
      name = "${side}-half";
      inherit ingot side;
      script = ''
        say "forging the $side half of $ingot"
        pause 0.3
        echo "$side half of $ingot" > "$out"
      '';
    };
  handle = make {
    name = "handle";
    left = half "left";
    right = half "right";
    script = ''
      say "joining $left and $right"
      { echo "handle of two halves"; echo "$left"; echo "$right"; } > "$out"
    '';
  };

  # Side by side: one label a tool, each from the same source file.
  tools = [
    "anvil" "bellows" "chisel" "drill" "file" "gauge" "hammer" "jig"
    "lathe" "mandrel" "nippers" "plane" "rasp" "saw" "tongs" "vice"
  ];
  label =
    tool:
    make {
      name = "label-${tool}";
      inherit tool words;
      script = ''
        found=no
        while read -r word; do
          if [ "$word" = "$tool" ]; then found=yes; fi
        done < "$words"
        if [ "$found" = no ]; then
          say "$tool is not in $words" >&2
          exit 1
        fi
        say "engraving $tool"
        pause 0.1
        echo "This is the $tool." > "$out"
      '';
    };
  labels = make {
    name = "labels";
    parts = map label tools;
    script = ''
      for part in $parts; do
        read -r line < "$part"
        say "$line"
        echo "$line"' '"$part" >> "$out"
      done
    '';
  };

  # Several outputs: who needs one of them does not get the others.
  drawing = make {
    name = "drawing";
    outputs = [ "out" "plan" "notes" ];
    inherit words;
    script = ''
      say "drawing three sheets"
      echo "the drawing" > "$out"
      echo "the plan of $out" > "$plan"
      echo "notes about $words" > "$notes"
    '';
  };
  frame = make {
    name = "frame";
    plan = drawing.plan;
    inherit handle;
    script = ''
      say "building the frame after $plan"
      echo "frame after $plan with $handle" > "$out"
    '';
  };
  manual = make {
    name = "manual";
    notes = drawing.notes;
    inherit labels;
    script = ''
      say "printing the manual from $notes"
      while read -r line; do echo "  $line"; done < "$labels" > "$out"
    '';
  };

  # A log worth watching.
  inspection = make {
    name = "inspection";
    inherit blade frame;
    script = ''
      step=1
      while [ "$step" -le 40 ]; do
        say "inspecting point $step of 40"
        pause 0.05
        step=$((step + 1))
      done
      say "no flaw found in $blade and $frame" >&2
      echo "inspected: $blade $frame" > "$out"
    '';
  };

  toolbox = make {
    name = "toolbox";
    inherit blade frame labels;
    script = ''
      say "packing the tools"
      { echo "$blade"; echo "$frame"; echo "$labels"; } > "$out"
    '';
  };
in
{
  tools = toolbox;
  default = make {
    name = "workshop";
    inherit toolbox manual inspection;
    script = ''
      say "opening the workshop"
      { echo "toolbox    $toolbox"; echo "manual     $manual"; echo "inspection $inspection"; } > "$out"
    '';
  };
}
