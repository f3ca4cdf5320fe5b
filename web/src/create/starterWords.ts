// The words the starter model was shown, each alone. Written by tools/starter/vocabulary.py; do not edit.
export const STARTER_WORDS = `
3d 4k 8 8k above accordion acoustic adhesive adorable aeroplane air aircraft airliner airplane alarm alien alligator
alone amazing ambulance american americas among amphora an ananas anchor ancient and android angel angry animal ant
antique anxious ape app apple apricot aquarium archery arm around arrival arrow art articulated artist arts
artstation as asia astonished astronaut at atom aubergine australia auto automobile autumn avocado award away axe
baby background backpack bacon badger badminton bag bagel bags baguette balance ball ballet balloon ballot ballpoint
banana bananas bandage banjo bank bar bare baseball basket basketball bat bath battery beach beaming beans bear
beating beautiful beaver bed bedroom bee beer beers beetle behind bell bellhop below beneath bento berries berry
beside best between beverage bicycle big bike billed billy biohazard bird birthday biscuit bison black blackbird
block blossom blossoming blouse blowfish blown blue blueberries blueberry boar board boat boba bolt bonbon bone book
bookmark books boom boomerang boot bottle bottom boulder bouquet bow bowl bowling box boxing boy brain brass brave
bread breathing brick bricks bridge briefcase bright broccoli broken brontosaurus broom broomstick brown brush bubble
bucket buffalo bug building bulb bull bullet bullseye bumblebee bun bunch bunny buoy burger burning burrito bus
business butter butterfly by cab cabin cactus cake calendar camcorder camel camera camper campfire camping campsite
candle candles candy cane canned canoe cap capped capsule car card cardboard carousel carpentry carrot carrying cart
cartoon carved case castle cat caterpillar cell cello centered cereal chain chains chair champagne champignon chapel
check cheese cheeseburger cheetah chef chemistry cherries cherry chess chest chestnut chick chicken children chili
chinese chips chocolate chopsticks christmas church circle circus city cityscape clamp clapper clapping classic
classical claus clean clementine clinic clinking clip clock close closed clothes cloud clouds cloudy clover clown
clutch coach coast coaster coat cob cock cocktail coconut coffee cog cogwheel coin cold collision colorful colourful
colours comet comic compass composition computer concept cone confetti confused construction controller cook cooked
cookie cool cop coral corn cottage couch cover cow cowboy crab cracking crayon cream credit cricket crisp crocodile
croissant cross crossbones crossed crown cruise crutch crying crystal cube cucumber cup cupcake curling curly curry
custard cute cutlery cycle cyclone dairy daisy dancing dark dart dashing date day de dead death decorated decorative
deep deer delicious demon departure derelict desert design desk desktop dessert detailed details detective devil
diamond dice die digital dinner dinosaur dirty disappointed disc disguised distorted divide diving dizzy dna doctor
dodo dog doggy dollar dolls dolphin done donkey donut door dot dots doughnut dove down dragon draw drawing dress
drink drop droplet droplets drops drum drums drumstick dry duck dumpling dune dusk eagle ear ears earth eating egg
eggplant eggs eight electric elegant elephant elevator elf else emblem emoji empty engine enraged entry envelope
eraser evening evil exclamation exercise exhausted exotic exploding explosion extinguisher extraterrestrial eye
eyeball eyebrow eyeglasses eyes face facing factory fairy falafel fallen falling family famous fan fancy farm farmer
fast father fear fearful feather ferris ferry fever few fiddle field fight film fingers fir fire firecracker
firefighter fireworks fish fishing fist five flame flames flamingo flash flashlight flat flatbread fleur floor flower
flowers fluffy flute flying folded folding food foot football for forest fork formula fortress fortune fountain four
fox framed freezing french fresh fried friendly fries frog from front frowning fruit frying fuel fuji full funny fur
furry galaxy galloping game gamepad garden garlic gas gear gecko gem genie gentle gerbil ghost giant gift ginger
giraffe girl glass glasses glitter globe glossy glove gloves glowing go goal goat goblin gold golden good goose
gorilla gown gradient graduation grandfather grandma grandmother grandpa grapes grass gray great green grey grimacing
grinning ground growing grumpy guard guide guinea guitar guy hair half halloween halo hamburger hammer hamster hand
handbag handle hands handset handshake happy hare harp hat hatchet hatching haunted having hawk hd head headphones
headstone hear heart heartbreak hearts heavy hedgehog heeled heels helicopter hello helmet hen herb hibiscus high
highly hiking hill hippo hippopotamus hockey hog holding hollow home honey hook horn horns horse horseshoe hospital
hot hotel hound hourglass house houses huge hugging human hump hut hyacinth ice icon illustration image in indoors
industrial infant infinity ink insect instrument invader is island isolated it jacket japanese jar jeans jeep
jellyfish jet jewel jigsaw joker joy joystick judge juice juicy jumping jungle kangaroo kayak key keyboard keys kick
kimono kind king kitchen kite kitten kitty kiwi knife knight knitted knocked knot koala lab lacrosse ladder lady
ladybird ladybug lake lamb lamp landscape landslide lantern laptop large laughing lawn leaf leafless leafy leather
leaves left leg lemon lemonade leopard letter lettuce liberty light lightbulb lighthouse lighting lightning like lime
liner lines link lion lipstick liquid lis little lizard llama loaf lobster lock log logo logs lollipop lolly lonely
long looking loop lorry lotion lots lotus loudly loudspeaker love lovely lucky luggage lying machine mad magic magnet
magnifier magnifying mail mailbox maize mallard mammoth man mandarin mango mantelpiece manual many map maple maracas
mark martini mask masks masterpiece me meadow measuring meat medal medical medicine medusa megaphone melon melting
memo mending meridians mermaid merry meteor metro mexican mic microphone microscope middle midnight military milk
milkshake milky mind minimal mint minus mirror mittens mobile modern monarch money monitor monkey monocle monster
moon moonlight moose moped morning moth motor motorbike motorboat motorcycle motorized mount mountain mountains mouse
moustache mouth movie mrs muffin mug mugs multiply muscle museum mushroom music musical nail national nauseated
navigation near neck necktie needle nerd nest nesting net neutral new newspaper next nib nice night ninja no noodle
noodles nose not note notebook notepad notes nothing nut oak ocean octopus of off office officer ogre oil ok old
olive olives on oncoming one onion open opened or orange orangutan orca otter out outer over owl ox oyster package
padlock pagoda pail paint paintbrush painting pair palace palette palm pan pancake pancakes panda pants paper
paperclip paprika parachute parasol parcel park parrot partly party partying passenger pasta pastry paw pawn pea
peace peach peacock peanuts pear pen pencil penguin pepper perfect performing pet petrol phoenix phone photo piano
piata pick pickle pickup picture pie piece pig piggy pile pill pilot pin pinata pine pineapple ping pink pint pirate
pizza plain plane planet plant plastic plate playground playing please plug plunger plus plush pod pointed polar pole
police policeman polish pong pony poodle pool popcorn popper pot potato potted pouring pouting present pretty pretzel
prey prince princess printer prints professional prohibited projector propeller proud pufferfish pump pumpkin puppy
purple purse pushpin puzzle quality question quill rabbit raccoon race racing racket radio radioactive railway rain
rainbow raindrop rainy raised ram ramen rat raw receiver recycling red reef render rescue resting rex rhino
rhinoceros ribbon rice rickshaw right ring ringed rings ripe road roast roasted robot rock rocket rocky rod roll
roller rolling roof room rooster root rope rose rosette round row rowing royal rucksack rugby ruler running rusty
sack sad safety sailboat sailing sake salad salt sand sandal sandwich sandy santa satellite saturn sausage saw sax
saxophone scale scarf school scientist scissors scooter score scorpion screaming screen screw screwdriver scroll sea
seal seashell seat sedan see seedling seen semi service set several sewing shaded shading shaker shallow shampoo
shamrock shape shapes shark sharp shaved sheep sheet shelf shell shield shining shiny ship shirt shocked shoe shoes
shooting shopping short shortcake shorts shovel show shower showing shows shrimp shushing side sign silver simple
singer singing single sitting six skate skateboard skates skeleton sketch skier skis skull skunk sky skyline
skyscraper sled sleeping sleepy slice slide slightly slot sloth slug sly small smartphone smile smiley smiling
smirking snail snake snare sneaker sneezing snow snowboarder snowflake snowman snowy soap soccer sock socks soda sofa
soft softball songbird soup space spaceman spaceship spade spaghetti spanner sparkle sparkler sparkles sparkling
speak speaker spectacles speed speedboat spider spiral splayed sponge spook spool spoon sport sports spots sprout
spud spyglass square squid squinting squirrel stack stadium standing star stars station statue steak steam steamship
step stethoscope stick sticker stone stop stopwatch storm story straw strawberry street streetcar string stripes
strips strong struck student studio stuffed style subway suitcase sun sundae sundown sunflower sunglasses sunrise
sunset sunshine superhero supervillain surface sushi suspension suv swan sweat sweating sweet swimming swine swords
symbol table taco tail takeout tale tall target tasty taxi tea teacher teapot tear tears teddy tee teeth telephone
telescope television temple tennis tent test text that the theatre there thermometer thinking this thought thread
three thumb thumbs thunderstorm tick tie tiger tilted timer tiny tired to toad toadstool toast together toilet tokyo
tomato tongue tool toolbox tooth toothbrush top torch tornado tortoise tower town toy tractor traffic train trainers
tram trap treasure tree trees trending triangle triangular trident troll trolley trolleybus trombone trophy tropical
trousers truck trumpet tub tube tulip tumbler turkey turtle tv two tyrannosaurus ufo umbrella under unicorn unlocked
up upside utility vampire van vanilla vase vector vegetable vehicle very vespa vest victory video view viewer village
vintage violet violin viper vivid volcano volleyball volume waffle wagon waiting walking wall wand want warning
wastebasket watch water watermelon wave waving wax way wc wearing weary weather web website wedding wedge whale wheel
wheelchair wheels white wicker wild wilted wind window windows wine wing wings wink winking winner winning winter
wireless with without wizard wolf woman womans wonderful wood wooden woods wool woolly worker workers working world
worried wrench wristwatch wry xmas yacht yang yarn yawning yellow yin yo young zany zebra zombie
`;
